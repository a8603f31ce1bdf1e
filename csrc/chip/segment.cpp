// A segment: operands from LX into lanes, an optional contraction on the PT, the lane program on the SFU,
// results back to LX. The nest is normalised (single indices dropped, dims merged wherever every port
// allows), then walked in blocks of up to kBlock lanes: rows of the innermost dim side by side. Reduced
// outputs keep fp32 (int32) accumulators, one per output point, and are stored at the end.
#include <algorithm>
#include <bit>

#include "chip/convert.h"
#include "chip/execute.h"
#include "chip/ops.h"
#include "chip/reduce.h"

namespace loom::chip {

namespace {

constexpr std::int64_t kBlock = 1024;  // lanes of a block; a buffer is 4 KiB
constexpr std::int64_t kMaxPoints = std::int64_t{1} << 40;
constexpr std::int64_t kMaxSums = 1 << 24;    // accumulators of one output
constexpr std::int64_t kMaxMatrix = 1 << 26;  // elements of one packed PT operand
constexpr int kMaxRank = static_cast<int>(limits::kRank);

struct Stream {  // a port of the SFU
  Elem elem;
  std::uint8_t* base;
  std::int64_t stride[kMaxRank];  // elements
};

float as_float(std::int32_t v) { return std::bit_cast<float>(v); }

class Run {
 public:
  Run(Core& core, const Segment& s, Workspace& work) : core_(core), s_(s), work_(work) {}

  void run() {
    read_nest();
    spend(core_, points_);
    if (s_.has_pt) contract();
    bind_ports();
    merge();
    start_sums();
    if (points_ > 0) {
      shape_block();
      prepare_buffers();
      walk();
    }
    store_sums();
  }

 private:
  [[noreturn]] void refuse(Unit unit, const std::string& message) const {
    fail(core_, unit, "DEV-06", "segment " + std::to_string(s_.number) + ": " + message);
  }

  void read_nest() {
    Wide points = 1;
    for (const Operand& e : s_.vec.extents) {
      const std::int64_t extent = core_.value(e, Unit::SFU);
      if (extent < 0) refuse(Unit::SFU, "extent " + std::to_string(extent) + " is negative");
      if (extent > kMaxPoints) refuse(Unit::SFU, "extent " + std::to_string(extent) + " is too large");
      extent_[rank_++] = extent;
      points *= extent;
      if (points > kMaxPoints) refuse(Unit::SFU, "more than 2^40 points");
    }
    points_ = static_cast<std::int64_t>(points);
  }

  /// Base address and strides of a port, checked against its LX block over the given extents.
  Stream bind(const Port& port, Unit unit, const std::int64_t* extent, int rank) const {
    const Core::Window w = core_.window(port.lx, unit);
    if (w.origin % bytes_of(port.elem))
      fail(core_, unit, "DEV-02",
           "LX address " + std::to_string(w.origin - w.begin) + " of block " +
               core_.program->blocks[port.lx.block].name + " is not a multiple of the element size " +
               std::to_string(bytes_of(port.elem)));
    Stream st{port.elem, core_.lx + w.origin, {}};
    Wide low = w.origin, high = w.origin;
    bool empty = false;
    for (int d = 0; d < rank; ++d) {
      st.stride[d] = core_.value(port.strides[static_cast<std::size_t>(d)], unit);
      if (extent[d] == 0) empty = true;
      const Wide reach = Wide{st.stride[d]} * bytes_of(port.elem) * (extent[d] - 1);
      low += std::min<Wide>(reach, 0);
      high += std::max<Wide>(reach, 0);
    }
    if (!empty) check_lx(core_, unit, port.lx, w, low, high + bytes_of(port.elem));
    return st;
  }

  /// Convert a matrix to dense fp32. Row-major [rows, columns] unless only the row index is contiguous.
  const float* pack(const Stream& st, const std::uint8_t* base, std::int64_t rows, std::int64_t columns,
                    std::int64_t row_stride, std::int64_t column_stride, Scratch& scratch,
                    bool* transposed) const {
    *transposed = column_stride != 1 && row_stride == 1 && columns > 1 && rows > 1;
    float* to = scratch.floats(static_cast<std::size_t>(rows * columns));
    if (*transposed) {
      std::swap(rows, columns);
      std::swap(row_stride, column_stride);
    }
    if (row_stride == columns && column_stride == 1) {
      load(st.elem, base, 1, to, rows * columns, Unit::L1LU);
      return to;
    }
    const std::int64_t pitch = row_stride * bytes_of(st.elem);
    for (std::int64_t r = 0; r < rows; ++r)
      load(st.elem, base + r * pitch, column_stride, to + r * columns, columns, Unit::L1LU);
    return to;
  }

  void load(Elem elem, const std::uint8_t* from, std::int64_t stride, float* to, std::int64_t n,
            Unit unit) const {
    if (!load_lanes(elem, from, stride, to, n)) refuse(unit, "an int64 element does not fit in 32 bits");
  }

  void contract() {
    const std::int64_t batch = extent_[0], m = extent_[1], n = extent_[2];
    const std::int64_t k = core_.value(s_.pt.k, Unit::PT);
    if (k < 0) refuse(Unit::PT, "k = " + std::to_string(k) + " is negative");
    for (const Wide size : {Wide{m} * k, Wide{k} * n, Wide{m} * n * batch})
      if (size > kMaxMatrix) refuse(Unit::PT, "a PT operand has more than 2^26 elements");
    const std::int64_t a_extent[] = {batch, m, k}, b_extent[] = {batch, k, n};
    const Stream a = bind(s_.pt_a, Unit::L1LU, a_extent, 3), b = bind(s_.pt_b, Unit::L1LU, b_extent, 3);
    // 64 multiply-accumulates take about as long as a lane, packing an element as long as one.
    spend(core_, Wide{points_} * k / 64 + Wide{batch} * (m + n) * (points_ ? k : 0));
    product_ = work_.c.floats(static_cast<std::size_t>(batch * m * n));
    const float *pa = nullptr, *pb = nullptr;
    bool at = false, bt = false;
    for (std::int64_t i = 0; i < batch && m && n; ++i) {
      if (k && (!pa || a.stride[0]))
        pa = pack(a, a.base + i * a.stride[0] * bytes_of(a.elem), m, k, a.stride[1], a.stride[2], work_.a,
                  &at);
      if (k && (!pb || b.stride[0]))
        pb = pack(b, b.base + i * b.stride[0] * bytes_of(b.elem), k, n, b.stride[1], b.stride[2], work_.b,
                  &bt);
      gemm(work_.sgemm, pa, at, pb, bt, product_ + i * m * n, static_cast<int>(m), static_cast<int>(n),
           static_cast<int>(k));
    }
  }

  void bind_ports() {
    for (std::size_t i = 0; i < s_.vec.inputs.size(); ++i) {
      if (s_.input_load[i] >= 0) {
        in_.push_back(bind(s_.loads[static_cast<std::size_t>(s_.input_load[i])], Unit::L1LU, extent_, rank_));
      } else {
        const std::int64_t m = extent_[1], n = extent_[2];
        in_.push_back({Elem::F32, reinterpret_cast<std::uint8_t*>(product_), {m * n, n, 1}});
      }
    }
    for (std::size_t i = 0; i < s_.stores.size(); ++i) {
      std::int64_t written[kMaxRank];  // reduced dims have stride 0; their extent does not matter
      for (int d = 0; d < rank_; ++d) written[d] = reduced(i, d) ? 1 : extent_[d];
      out_.push_back(bind(s_.stores[i], Unit::L1SU, written, rank_));
      mask_.push_back(s_.vec.outputs[i].dims);
    }
    for (const MicroOp& op : s_.lane)
      if (op.op == VecOp::IOTA) iota_.push_back(static_cast<int>(op.imm_int));
  }

  bool reduced(std::size_t output, int d) const { return s_.vec.outputs[output].dims >> d & 1; }

  /// Drop dims of one index and merge neighbours that every port walks as one.
  void merge() {
    std::int64_t extent[kMaxRank];
    std::vector<Stream> in = in_, out = out_;
    std::vector<std::uint32_t> mask(mask_.size(), 0);
    std::vector<int> iota(iota_.size(), -1);
    int rank = 0;
    const auto is_iota = [&](int d) { return std::find(iota_.begin(), iota_.end(), d) != iota_.end(); };
    bool last_is_iota = false;
    for (int d = 0; d < rank_; ++d) {
      if (extent_[d] == 1) continue;
      bool join = rank > 0 && points_ > 0 && !is_iota(d) && !last_is_iota;
      for (std::size_t i = 0; join && i < in_.size(); ++i)
        join = in[i].stride[rank - 1] == in_[i].stride[d] * extent_[d];
      for (std::size_t i = 0; join && i < out_.size(); ++i)
        join = out[i].stride[rank - 1] == out_[i].stride[d] * extent_[d] &&
               (mask[i] >> (rank - 1) & 1) == (mask_[i] >> d & 1);
      const int to = join ? rank - 1 : rank++;
      extent[to] = join ? extent[to] * extent_[d] : extent_[d];
      for (std::size_t i = 0; i < in_.size(); ++i) in[i].stride[to] = in_[i].stride[d];
      for (std::size_t i = 0; i < out_.size(); ++i) {
        out[i].stride[to] = out_[i].stride[d];
        mask[i] |= (mask_[i] >> d & 1) << to;
      }
      last_is_iota = is_iota(d);
      for (std::size_t i = 0; i < iota.size(); ++i)
        if (iota_[i] == d) iota[i] = to;
    }
    rank_ = rank;
    std::copy(extent, extent + rank, extent_);
    in_.swap(in);
    out_.swap(out);
    mask_.swap(mask);
    iota_.swap(iota);
  }

  void start_sums() {
    std::size_t total = 0;
    sums_.resize(out_.size());
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (s_.vec.outputs[i].reduce == Reduce::NONE) continue;
      std::int64_t count = 1;
      for (int d = rank_ - 1; d >= 0; --d) {
        const bool folded = mask_[i] >> d & 1;
        sums_[i].stride[d] = folded ? 0 : count;
        if (!folded) count *= extent_[d];
        if (count > kMaxSums) refuse(Unit::SFU, "a reduction with more than 2^24 results");
      }
      sums_[i].first = total;
      sums_[i].count = count;
      total += static_cast<std::size_t>(count);
      total = (total + 15) / 16 * 16;
    }
    spend(core_, total);
    float* sums = work_.sums.floats(total);
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (s_.vec.outputs[i].reduce == Reduce::NONE) continue;
      sums_[i].at = sums + sums_[i].first;
      std::fill(sums_[i].at, sums_[i].at + sums_[i].count, fold_of(s_.vec.outputs[i].reduce).neutral());
    }
  }

  /// A block: `rows_` indices of dim row_ by up to kBlock lanes of the innermost dim.
  void shape_block() {
    if (rank_ == 0) {
      extent_[rank_++] = 1;
      for (auto* ports : {&in_, &out_})
        for (Stream& st : *ports) st.stride[0] = 0;
      for (auto& sum : sums_) sum.stride[0] = 0;
      // The single index of the nest counts as reduced for reduced outputs.
      for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] = s_.vec.outputs[i].reduce != Reduce::NONE;
    }
    inner_ = rank_ - 1;
    width_ = std::min(extent_[inner_], kBlock);
    row_ = inner_ - 1;
    rows_ = row_ >= 0 && extent_[inner_] <= kBlock
                ? std::clamp<std::int64_t>(kBlock / extent_[inner_], 1, extent_[row_])
                : 1;
  }

  void prepare_buffers() {
    lanes_ = work_.lanes.floats(static_cast<std::size_t>(s_.buffers) * kBlock);
    count_ = width_ * rows_;
    for (const MicroOp& op : s_.uniform) constant(op);
  }

  float* buffer(std::uint32_t i) const { return lanes_ + static_cast<std::size_t>(i) * kBlock; }

  static int padded(std::int64_t lanes) {
    return static_cast<int>((lanes + kLaneGroup - 1) / kLaneGroup * kLaneGroup);
  }

  void constant(const MicroOp& op) {
    float value;
    switch (op.op) {
      case VecOp::CONST_F:
        value = op.imm_float;
        break;
      case VecOp::CONST_I:
        value = as_float(static_cast<std::int32_t>(op.imm_int));
        break;
      case VecOp::SCALAR_F:
      case VecOp::SCALAR_I: {
        const Operand from = op.imm_int >= 0 ? Operand{OperandKind::SLOT, op.imm_int}
                                             : Operand{OperandKind::REG, -1 - op.imm_int};
        const std::int64_t number = core_.value(from, Unit::SFU);
        if (op.op == VecOp::SCALAR_I && number != static_cast<std::int32_t>(number))
          refuse(Unit::SFU, "scalar " + std::to_string(number) + " does not fit in 32 bits");
        value = as_float(static_cast<std::int32_t>(number));
        break;
      }
      default:
        compute(op, count_);
        return;
    }
    std::fill_n(buffer(op.dst), padded(count_), value);
  }

  /// One operation without an immediate over the first `lanes` lanes of its buffers.
  void compute(const MicroOp& op, std::int64_t lanes) const {
    if (op.op == VecOp::CHECK) check(buffer(op.a), buffer(op.b), lanes);
    lane_function(op.op)(buffer(op.dst), buffer(op.a), buffer(op.b), buffer(op.c), padded(lanes));
  }

  void check(const float* over, const float* value, std::int64_t lanes) const {
    for (std::int64_t i = 0; i < lanes; ++i)
      if (over[i] != 0.0f)
        fail(core_, Unit::SFU, "DEV-10",
             "segment " + std::to_string(s_.number) +
                 ": an int64 value does not fit in the 32 bits that the device holds (its low 32 bits are " +
                 std::to_string(std::bit_cast<std::int32_t>(value[i])) + ")");
  }

  void walk() {
    std::int64_t at[kMaxRank] = {};
    for (;;) {
      const std::int64_t width = std::min(width_, extent_[inner_] - at[inner_]);
      const std::int64_t rows = row_ >= 0 ? std::min(rows_, extent_[row_] - at[row_]) : 1;
      block(at, rows, width);
      int d = inner_;
      for (; d >= 0; --d) {
        at[d] += d == inner_ ? width_ : d == row_ ? rows_ : 1;
        if (at[d] < extent_[d]) break;
        at[d] = 0;
      }
      if (d < 0) return;
    }
  }

  std::int64_t offset(const std::int64_t* stride, const std::int64_t* at) const {
    std::int64_t sum = 0;
    for (int d = 0; d < rank_; ++d) sum += stride[d] * at[d];
    return sum;
  }
  std::int64_t row_step(const std::int64_t* stride) const { return row_ >= 0 ? stride[row_] : 0; }

  void block(const std::int64_t* at, std::int64_t rows, std::int64_t width) {
    const std::int64_t lanes = rows * width;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      const Stream& st = in_[i];
      const int size = bytes_of(st.elem);
      const std::uint8_t* from = st.base + offset(st.stride, at) * size;
      float* to = buffer(s_.input_buffer[i]);
      const std::int64_t step = row_step(st.stride), along = st.stride[inner_];
      if (rows == 1 || step == along * width) {
        load(st.elem, from, along, to, lanes, Unit::L1LU);
      } else if (step == 0) {  // one row for all
        load(st.elem, from, along, to, width, Unit::L1LU);
        for (std::int64_t r = 1; r < rows; ++r) std::copy_n(to, width, to + r * width);
      } else {
        for (std::int64_t r = 0; r < rows; ++r)
          load(st.elem, from + r * step * size, along, to + r * width, width, Unit::L1LU);
      }
    }
    std::size_t iota = 0;
    for (const MicroOp& op : s_.lane) {
      if (op.op == VecOp::IOTA)
        count_along(iota_[iota++], at, rows, width, buffer(op.dst));
      else
        compute(op, lanes);
    }
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const float* from = buffer(s_.output_buffer[i]);
      if (s_.vec.outputs[i].reduce == Reduce::NONE)
        store(out_[i], at, from, rows, width);
      else
        accumulate(i, at, from, rows, width);
    }
  }

  void count_along(int d, const std::int64_t* at, std::int64_t rows, std::int64_t width, float* to) const {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t index = d < 0 ? 0 : d == inner_ ? at[d] + i : d == row_ ? at[d] + r : at[d];
        *to++ = as_float(static_cast<std::int32_t>(index));
      }
  }

  void store(const Stream& st, const std::int64_t* at, const float* from, std::int64_t rows,
             std::int64_t width) const {
    const int size = bytes_of(st.elem);
    std::uint8_t* to = st.base + offset(st.stride, at) * size;
    const std::int64_t step = row_step(st.stride), along = st.stride[inner_];
    if (rows == 1 || step == along * width) return store_lanes(st.elem, from, to, along, rows * width);
    for (std::int64_t r = 0; r < rows; ++r)
      store_lanes(st.elem, from + r * width, to + r * step * size, along, width);
  }

  void accumulate(std::size_t i, const std::int64_t* at, const float* from, std::int64_t rows,
                  std::int64_t width) const {
    const Fold& fold = fold_of(s_.vec.outputs[i].reduce);
    float* to = sums_[i].at + offset(sums_[i].stride, at);
    const std::int64_t step = row_step(sums_[i].stride);
    const bool along = mask_[i] >> inner_ & 1;
    if (along && step == 0 && row_ >= 0 && rows > 1 && (mask_[i] >> row_ & 1))
      return fold.row(to, from, rows * width);
    for (std::int64_t r = 0; r < rows; ++r, to += step, from += width)
      along ? fold.row(to, from, width) : fold.lanes(to, from, width);
  }

  /// Write the accumulators over the dims that are not reduced.
  void store_sums() {
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (s_.vec.outputs[i].reduce == Reduce::NONE || sums_[i].count == 0) continue;
      std::int64_t extent[kMaxRank], stride[kMaxRank], at[kMaxRank] = {};
      int rank = 0;
      for (int d = 0; d < rank_; ++d) {
        if (mask_[i] >> d & 1) continue;
        extent[rank] = extent_[d];
        stride[rank++] = out_[i].stride[d];
      }
      const int size = bytes_of(out_[i].elem);
      const std::int64_t width = rank ? extent[rank - 1] : 1, along = rank ? stride[rank - 1] : 1;
      const float* from = sums_[i].at;
      for (;;) {
        std::int64_t to = 0;
        for (int d = 0; d < rank - 1; ++d) to += at[d] * stride[d];
        store_lanes(out_[i].elem, from, out_[i].base + to * size, along, width);
        from += width;
        int d = rank - 2;
        for (; d >= 0; --d) {
          if (++at[d] < extent[d]) break;
          at[d] = 0;
        }
        if (d < 0) break;
      }
    }
  }

  struct Sums {
    std::int64_t stride[kMaxRank] = {};
    std::size_t first = 0;
    std::int64_t count = 0;
    float* at = nullptr;
  };

  Core& core_;
  const Segment& s_;
  Workspace& work_;
  std::int64_t extent_[kMaxRank] = {};
  int rank_ = 0, inner_ = 0, row_ = -1;
  std::int64_t points_ = 0, width_ = 0, rows_ = 1, count_ = 0;
  float* product_ = nullptr;
  float* lanes_ = nullptr;
  std::vector<Stream> in_, out_;
  std::vector<std::uint32_t> mask_;  // reduced dims per output
  std::vector<int> iota_;            // dim of each IOTA, -1 when it has one index
  std::vector<Sums> sums_;
};

}  // namespace

void run_segment(Core& core, const Segment& segment, Workspace& work) { Run(core, segment, work).run(); }

}  // namespace loom::chip
