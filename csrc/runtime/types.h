// Element types as the host sees them (Dtype), as device memory holds them (Format), and the concrete
// bit patterns a conversion moves between (Phys). One torch dtype has one Phys per side of a transfer.
#pragma once

#include <cstdint>
#include <string>

namespace loom::rt {

/// Torch dtypes that a tensor on the device or the host side of a transfer may have.
enum class Dtype : std::uint8_t { F16, BF16, F32, F64, Bool, I64, I32, I16, I8, U8, F8E4M3, F8E5M2Z, None };

/// Device formats. The first nine equal Elem of torch_loom/spyrecode/model.py; the later ones are
/// transfer-only. `U8` holds storages of plain bytes; uint8 tensors lie in `U32`, as in the public stack.
enum class Format : std::uint8_t {
  DF16 = 0,
  F32 = 1,
  I32 = 2,
  F16 = 3,
  BF16 = 4,
  I16 = 5,
  I8 = 6,
  U8 = 7,
  FP8_143 = 16,
  FP8_152 = 17,
  U32 = 18,
};

/// Bit patterns of single elements. `DBool` is a bool as df16 0/1, `HBool16` a bool as IEEE half 0/1,
/// `I32N` an int64 narrowed to 32 bits (values that do not fit are an error, never a wrap), `U32W` a uint8
/// widened to 32 bits.
enum class Phys : std::uint8_t {
  F16,
  BF16,
  F32,
  F64,
  Bool,
  I64,
  I32,
  I16,
  I8,
  U8,
  F8E4M3,
  F8E5M2Z,
  DF16,
  DBool,
  HBool16,
  I32N,
  U32W,
  Count,
};

/// Size of one element on the host in bytes.
int host_bytes(Dtype);
/// Size of one element on the device in bytes.
int format_bytes(Format);
int phys_bytes(Phys);
/// Elements per 128-byte stick.
inline int lanes(Format f) { return 128 / format_bytes(f); }

const char* dtype_name(Dtype);
const char* format_name(Format);

/// Device format of a dtype; false when the device has none (float64, complex).
/// `ieee` keeps 16-bit floats in their IEEE form.
bool device_format(Dtype, bool ieee, Format* out);

Phys host_phys(Dtype);
/// Bit pattern of a `dtype` element in device memory of format `f`.
Phys device_phys(Dtype dtype, Format f);

}  // namespace loom::rt
