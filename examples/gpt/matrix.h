// Row-major matrix products over raw memory, by Eigen. Every function writes or adds into memory that the caller owns.
//
// Products run in panels of at most kPanel output columns: with EIGEN_STACK_ALLOCATION_LIMIT at a megabyte (examples/gpt/CMakeLists.txt)
// the packed blocks of a panel fit on the stack, so no product allocates.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

namespace gpt {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<Eigen::Dynamic>;
using MatrixView = Eigen::Map<RowMajor, Eigen::Unaligned, Stride>;
using ConstMatrixView = Eigen::Map<const RowMajor, Eigen::Unaligned, Stride>;
using ArrayView = Eigen::Map<Eigen::ArrayXf>;
using ConstArrayView = Eigen::Map<const Eigen::ArrayXf>;

inline constexpr std::int64_t kPanel = 512;

/// `stride`: elements from one row to the next.
inline MatrixView matrix(float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return MatrixView(data, rows, columns, Stride(stride));
}
inline MatrixView matrix(float* data, std::int64_t rows, std::int64_t columns) { return matrix(data, rows, columns, columns); }
inline ConstMatrixView matrix(const float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return ConstMatrixView(data, rows, columns, Stride(stride));
}
inline ConstMatrixView matrix(const float* data, std::int64_t rows, std::int64_t columns) { return matrix(data, rows, columns, columns); }
inline ArrayView array(float* data, std::int64_t count) { return ArrayView(data, count); }
inline ConstArrayView array(const float* data, std::int64_t count) { return ConstArrayView(data, count); }

/// y (n x m) = x (n x k) · w (k x m)
template <class X, class W>
void multiply(const X& x, const W& w, MatrixView y) {
  for (std::int64_t j = 0; j < y.cols(); j += kPanel) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, y.cols() - j);
    y.middleCols(j, columns).noalias() = x * w.middleCols(j, columns);
  }
}

/// y += x · w
template <class X, class W>
void multiply_add(const X& x, const W& w, MatrixView y) {
  for (std::int64_t j = 0; j < y.cols(); j += kPanel) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, y.cols() - j);
    y.middleCols(j, columns).noalias() += x * w.middleCols(j, columns);
  }
}

/// Adds a bias (length of a row) to every row.
inline void add_to_rows(const float* bias, MatrixView y) {
  for (std::int64_t i = 0; i < y.rows(); ++i) array(y.data() + i * y.outerStride(), y.cols()) += array(bias, y.cols());
}

/// Adds the sum of the rows of `y`, first row first, into `sums`.
inline void add_row_sums(ConstMatrixView y, float* sums) {
  for (std::int64_t i = 0; i < y.rows(); ++i) array(sums, y.cols()) += array(y.data() + i * y.outerStride(), y.cols());
}

}  // namespace gpt
