#include "chip/ops.h"

namespace loom::chip {

namespace {

using enum ImmKind;
using enum Cost;

// In the order of VecOp.
constexpr OpInfo kOps[] = {
    {"const_f", "", 'f', FLOAT, FREE},        {"const_i", "", 'i', INT, FREE},
    {"scalar_f", "", 'f', INT, FREE},         {"scalar_i", "", 'i', INT, FREE},
    {"iota", "", 'i', INT, SIMPLE},           {"add_f", "ff", 'f', NONE, SIMPLE},
    {"sub_f", "ff", 'f', NONE, SIMPLE},       {"mul_f", "ff", 'f', NONE, SIMPLE},
    {"div_f", "ff", 'f', NONE, DIVIDE},       {"max_f", "ff", 'f', NONE, SIMPLE},
    {"min_f", "ff", 'f', NONE, SIMPLE},       {"maxnum_f", "ff", 'f', NONE, SIMPLE},
    {"minnum_f", "ff", 'f', NONE, SIMPLE},    {"neg_f", "f", 'f', NONE, SIMPLE},
    {"abs_f", "f", 'f', NONE, SIMPLE},        {"fma_f", "fff", 'f', NONE, SIMPLE},
    {"exp", "f", 'f', NONE, TRANSCENDENTAL},  {"exp2", "f", 'f', NONE, TRANSCENDENTAL},
    {"expm1", "f", 'f', NONE, TRANSCENDENTAL}, {"log", "f", 'f', NONE, TRANSCENDENTAL},
    {"log2", "f", 'f', NONE, TRANSCENDENTAL}, {"log1p", "f", 'f', NONE, TRANSCENDENTAL},
    {"sqrt", "f", 'f', NONE, TRANSCENDENTAL}, {"rsqrt", "f", 'f', NONE, TRANSCENDENTAL},
    {"recip", "f", 'f', NONE, DIVIDE},        {"tanh", "f", 'f', NONE, TRANSCENDENTAL},
    {"erf", "f", 'f', NONE, TRANSCENDENTAL},  {"sigmoid", "f", 'f', NONE, TRANSCENDENTAL},
    {"silu", "f", 'f', NONE, TRANSCENDENTAL}, {"gelu", "f", 'f', NONE, TRANSCENDENTAL},
    {"sin", "f", 'f', NONE, TRANSCENDENTAL},  {"cos", "f", 'f', NONE, TRANSCENDENTAL},
    {"pow", "ff", 'f', NONE, TRANSCENDENTAL}, {"floor", "f", 'f', NONE, SIMPLE},
    {"ceil", "f", 'f', NONE, SIMPLE},         {"round", "f", 'f', NONE, SIMPLE},
    {"trunc", "f", 'f', NONE, SIMPLE},        {"eq_f", "ff", 'f', NONE, SIMPLE},
    {"ne_f", "ff", 'f', NONE, SIMPLE},        {"lt_f", "ff", 'f', NONE, SIMPLE},
    {"le_f", "ff", 'f', NONE, SIMPLE},        {"gt_f", "ff", 'f', NONE, SIMPLE},
    {"ge_f", "ff", 'f', NONE, SIMPLE},        {"select", "f??", '?', NONE, SIMPLE},
    {"and_m", "ff", 'f', NONE, SIMPLE},       {"or_m", "ff", 'f', NONE, SIMPLE},
    {"xor_m", "ff", 'f', NONE, SIMPLE},       {"not_m", "f", 'f', NONE, SIMPLE},
    {"add_i", "ii", 'i', NONE, SIMPLE},       {"sub_i", "ii", 'i', NONE, SIMPLE},
    {"mul_i", "ii", 'i', NONE, SIMPLE},       {"min_i", "ii", 'i', NONE, SIMPLE},
    {"max_i", "ii", 'i', NONE, SIMPLE},       {"floordiv_i", "ii", 'i', NONE, DIVIDE},
    {"div_i", "ii", 'i', NONE, DIVIDE},       {"rem_i", "ii", 'i', NONE, DIVIDE},
    {"and_i", "ii", 'i', NONE, SIMPLE},       {"or_i", "ii", 'i', NONE, SIMPLE},
    {"xor_i", "ii", 'i', NONE, SIMPLE},       {"shl_i", "ii", 'i', NONE, SIMPLE},
    {"shr_i", "ii", 'i', NONE, SIMPLE},       {"eq_i", "ii", 'f', NONE, SIMPLE},
    {"ne_i", "ii", 'f', NONE, SIMPLE},        {"lt_i", "ii", 'f', NONE, SIMPLE},
    {"le_i", "ii", 'f', NONE, SIMPLE},        {"gt_i", "ii", 'f', NONE, SIMPLE},
    {"ge_i", "ii", 'f', NONE, SIMPLE},        {"f_to_i", "f", 'i', NONE, SIMPLE},
    {"i_to_f", "i", 'f', NONE, SIMPLE},       {"round_df16", "f", 'f', NONE, SIMPLE},
    {"round_f16", "f", 'f', NONE, SIMPLE},    {"round_bf16", "f", 'f', NONE, SIMPLE},
    {"copy", "?", '?', NONE, FREE},           {"rem_f", "ff", 'f', NONE, DIVIDE},
    {"tan", "f", 'f', NONE, TRANSCENDENTAL},  {"asin", "f", 'f', NONE, TRANSCENDENTAL},
    {"acos", "f", 'f', NONE, TRANSCENDENTAL}, {"atan", "f", 'f', NONE, TRANSCENDENTAL},
    {"atan2", "ff", 'f', NONE, TRANSCENDENTAL}, {"sinh", "f", 'f', NONE, TRANSCENDENTAL},
    {"cosh", "f", 'f', NONE, TRANSCENDENTAL}, {"asinh", "f", 'f', NONE, TRANSCENDENTAL},
    {"acosh", "f", 'f', NONE, TRANSCENDENTAL}, {"atanh", "f", 'f', NONE, TRANSCENDENTAL},
    {"isnan", "f", 'f', NONE, SIMPLE},        {"isinf", "f", 'f', NONE, SIMPLE},
    {"erfc", "f", 'f', NONE, TRANSCENDENTAL}, {"lgamma", "f", 'f', NONE, TRANSCENDENTAL},
    {"softplus", "fff", 'f', NONE, TRANSCENDENTAL}, {"u_to_f", "i", 'f', NONE, SIMPLE},
    {"shru_i", "ii", 'i', NONE, SIMPLE},      {"udiv_i", "ii", 'i', NONE, DIVIDE},
    {"urem_i", "ii", 'i', NONE, DIVIDE},      {"ult_i", "ii", 'f', NONE, SIMPLE},
    {"ule_i", "ii", 'f', NONE, SIMPLE},       {"mulhi_i", "ii", 'i', NONE, SIMPLE},
};
static_assert(sizeof kOps / sizeof *kOps == kVecOps);

}  // namespace

const OpInfo& info(VecOp op) { return kOps[static_cast<std::size_t>(op)]; }

}  // namespace loom::chip
