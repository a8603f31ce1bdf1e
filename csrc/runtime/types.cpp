// Tables of the element types: one row per dtype, format and bit pattern.
#include "runtime/types.h"

#include <stdexcept>

namespace loom::rt {
namespace {

struct DtypeRow {
  const char* name;
  int bytes;
  Phys host;
  bool on_device;
  Format format;
  Format ieee;
};

constexpr DtypeRow kDtypes[] = {
    {"float16", 2, Phys::F16, true, Format::DF16, Format::F16},
    {"bfloat16", 2, Phys::BF16, true, Format::DF16, Format::BF16},
    {"float32", 4, Phys::F32, true, Format::F32, Format::F32},
    {"float64", 8, Phys::F64, false, Format::F32, Format::F32},
    {"bool", 1, Phys::Bool, true, Format::DF16, Format::F16},
    {"int64", 8, Phys::I64, true, Format::I32, Format::I32},
    {"int32", 4, Phys::I32, true, Format::I32, Format::I32},
    {"int16", 2, Phys::I16, true, Format::I16, Format::I16},
    {"int8", 1, Phys::I8, true, Format::I8, Format::I8},
    {"uint8", 1, Phys::U8, true, Format::U32, Format::U32},
    {"float8_e4m3fn", 1, Phys::F8E4M3, true, Format::FP8_143, Format::FP8_143},
    {"float8_e5m2fnuz", 1, Phys::F8E5M2Z, true, Format::FP8_152, Format::FP8_152},
};

const DtypeRow& row(Dtype d) {
  if (d >= Dtype::None) throw std::logic_error("no such dtype");
  return kDtypes[static_cast<int>(d)];
}

}  // namespace

int host_bytes(Dtype d) { return row(d).bytes; }
const char* dtype_name(Dtype d) { return row(d).name; }
Phys host_phys(Dtype d) { return row(d).host; }

int format_bytes(Format f) {
  switch (f) {
    case Format::F32:
    case Format::I32:
    case Format::U32:
      return 4;
    case Format::I8:
    case Format::U8:
    case Format::FP8_143:
    case Format::FP8_152:
      return 1;
    default:
      return 2;
  }
}

int phys_bytes(Phys p) {
  switch (p) {
    case Phys::F64:
    case Phys::I64:
      return 8;
    case Phys::F32:
    case Phys::I32:
    case Phys::I32N:
    case Phys::U32W:
      return 4;
    case Phys::Bool:
    case Phys::I8:
    case Phys::U8:
    case Phys::F8E4M3:
    case Phys::F8E5M2Z:
      return 1;
    default:
      return 2;
  }
}

const char* format_name(Format f) {
  switch (f) {
    case Format::DF16:
      return "SEN169_FP16";
    case Format::F32:
      return "IEEE_FP32";
    case Format::I32:
      return "IEEE_INT32";
    case Format::F16:
      return "IEEE_FP16";
    case Format::BF16:
      return "BFLOAT16";
    case Format::I16:
      return "SENINT16";
    case Format::I8:
      return "SENINT8";
    case Format::U8:
      return "SENUINT8";
    case Format::U32:
      return "SENUINT32";
    case Format::FP8_143:
      return "SEN143_FP8";
    case Format::FP8_152:
      return "SEN152_FP8";
  }
  return "INVALID";
}

bool device_format(Dtype d, bool ieee, Format* out) {
  if (d >= Dtype::None || !row(d).on_device) return false;
  *out = ieee ? row(d).ieee : row(d).format;
  return true;
}

Phys device_phys(Dtype dtype, Format f) {
  switch (f) {
    case Format::DF16:
      return dtype == Dtype::Bool ? Phys::DBool : Phys::DF16;
    case Format::F16:
      return dtype == Dtype::Bool ? Phys::HBool16 : Phys::F16;
    case Format::BF16:
      return Phys::BF16;
    case Format::F32:
      return Phys::F32;
    case Format::I32:
      return dtype == Dtype::I64 ? Phys::I32N : Phys::I32;
    case Format::U32:
      return Phys::U32W;
    case Format::I16:
      return Phys::I16;
    case Format::I8:
      return Phys::I8;
    case Format::U8:
      return Phys::U8;
    case Format::FP8_143:
      return Phys::F8E4M3;
    case Format::FP8_152:
      return Phys::F8E5M2Z;
  }
  throw std::logic_error("no such device format");
}

}  // namespace loom::rt
