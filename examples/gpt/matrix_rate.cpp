#include "examples/gpt/matrix_rate.h"

#include <chrono>

#include "examples/gpt/matrix.h"

namespace gpt {

double measure_matrix_rate(double seconds) {
  using Clock = std::chrono::steady_clock;
  const Eigen::MatrixXf a = Eigen::MatrixXf::Constant(512, 512, 0.5f);
  const Eigen::MatrixXf b = Eigen::MatrixXf::Constant(512, 2048, 0.25f);
  Eigen::MatrixXf c(512, 2048);
  c.noalias() = a * b;  // pages, caches, clock
  int products = 0;
  const auto begin = Clock::now();
  double elapsed = 0.0;
  do {
    c.noalias() = a * b;
    ++products;
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (elapsed < seconds);
  return products * 2.0 * 512.0 * 512.0 * 2048.0 / elapsed;
}

}  // namespace gpt
