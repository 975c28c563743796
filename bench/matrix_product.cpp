#include "bench/matrix_product.h"

#include <Eigen/Core>
#include <chrono>

namespace bench {

double product_flops_per_second() {
  using Clock = std::chrono::steady_clock;
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(512, 512);
  const Eigen::MatrixXf b = Eigen::MatrixXf::Random(512, 2048);
  Eigen::MatrixXf c(512, 2048);
  c.noalias() = a * b;
  int products = 0;
  const auto begin = Clock::now();
  double seconds = 0.0;
  for (; seconds < 1.0; ++products) {
    c.noalias() = a * b;
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return products * 2.0 * 512 * 512 * 2048 / seconds;
}

}  // namespace bench
