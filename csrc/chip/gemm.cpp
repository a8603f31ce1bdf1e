// Single-precision matrix product: the BLAS the host offers, or a blocked kernel of our own.
#include <algorithm>
#include <vector>

#include "chip/execute.h"
#include "chip/simd.h"

namespace loom::chip {

namespace {

using namespace simd;

constexpr int kRows = 6, kColumns = 16;   // register tile
constexpr int kDepth = 256, kPanel = 96;  // block of k, block of m (a multiple of kRows)

/// Rows of a block of a, kRows at a time, k-major; missing rows are zero.
void pack_a(const float* a, bool transposed, int lda, int row, int rows, int from, int depth, float* out) {
  for (int i = 0; i < rows; i += kRows)
    for (int p = 0; p < depth; ++p)
      for (int r = 0; r < kRows; ++r) {
        const int m = row + i + r, k = from + p;
        const bool inside = i + r < rows;
        *out++ = inside ? (transposed ? a[static_cast<std::ptrdiff_t>(k) * lda + m]
                                      : a[static_cast<std::ptrdiff_t>(m) * lda + k])
                        : 0.0f;
      }
}

/// Columns of a block of b, kColumns at a time, k-major; missing columns are zero.
void pack_b(const float* b, bool transposed, int ldb, int from, int depth, int n, float* out) {
  for (int j = 0; j < n; j += kColumns)
    for (int p = 0; p < depth; ++p)
      for (int c = 0; c < kColumns; ++c) {
        const int k = from + p, column = j + c;
        *out++ = column < n ? (transposed ? b[static_cast<std::ptrdiff_t>(column) * ldb + k]
                                          : b[static_cast<std::ptrdiff_t>(k) * ldb + column])
                            : 0.0f;
      }
}

void tile(const float* a, const float* b, int depth, float* c, int ldc, int rows, int columns) {
  F sum[kRows][2] = {};
  for (int p = 0; p < depth; ++p, a += kRows, b += kColumns) {
    const F b0 = loadu<F>(b), b1 = loadu<F>(b + kWidth);
    for (int r = 0; r < kRows; ++r) {
      const F x = splat(a[r]);
      sum[r][0] = simd::fma(x, b0, sum[r][0]);
      sum[r][1] = simd::fma(x, b1, sum[r][1]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* out = c + static_cast<std::ptrdiff_t>(r) * ldc;
    if (columns == kColumns) {
      storeu(out, loadu<F>(out) + sum[r][0]);
      storeu(out + kWidth, loadu<F>(out + kWidth) + sum[r][1]);
    } else {
      for (int j = 0; j < columns; ++j) out[j] += sum[r][j / kWidth][j % kWidth];
    }
  }
}

void own_gemm(const float* a, bool at, const float* b, bool bt, float* c, int m, int n, int k) {
  thread_local std::vector<float> pa, pb;
  const int lda = at ? m : k, ldb = bt ? k : n;
  std::fill(c, c + static_cast<std::ptrdiff_t>(m) * n, 0.0f);
  const int wide = (n + kColumns - 1) / kColumns * kColumns;
  pb.resize(static_cast<std::size_t>(kDepth) * static_cast<std::size_t>(wide));
  pa.resize(static_cast<std::size_t>(kDepth) * kPanel);
  for (int from = 0; from < k; from += kDepth) {
    const int depth = std::min(kDepth, k - from);
    pack_b(b, bt, ldb, from, depth, n, pb.data());
    for (int row = 0; row < m; row += kPanel) {
      const int rows = std::min(kPanel, m - row);
      pack_a(a, at, lda, row, rows, from, depth, pa.data());
      for (int j = 0; j < n; j += kColumns)
        for (int i = 0; i < rows; i += kRows)
          tile(pa.data() + static_cast<std::ptrdiff_t>(i) * depth,
               pb.data() + static_cast<std::ptrdiff_t>(j) * depth, depth,
               c + static_cast<std::ptrdiff_t>(row + i) * n + j, n, std::min(kRows, rows - i),
               std::min(kColumns, n - j));
    }
  }
}

}  // namespace

void gemm(Sgemm sgemm, const float* a, bool at, const float* b, bool bt, float* c, int m, int n, int k) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    std::fill(c, c + static_cast<std::ptrdiff_t>(m) * n, 0.0f);
    return;
  }
  if (!sgemm) return own_gemm(a, at, b, bt, c, m, n, k);
  // Row-major c = a b is column-major c' = b' a'.
  const float one = 1.0f, zero = 0.0f;
  const int lda = at ? m : k, ldb = bt ? k : n;
  sgemm(bt ? "T" : "N", at ? "T" : "N", &n, &m, &k, &one, b, &ldb, a, &lda, &zero, c, &n);
}

}  // namespace loom::chip
