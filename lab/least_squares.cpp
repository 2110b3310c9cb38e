// Eigen's Levenberg-Marquardt, which is MINPACK's. The only file that knows Eigen.
#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/lab/fit.h>

#if defined(HALFTONE_HAVE_EIGEN)
#include <unsupported/Eigen/NonLinearOptimization>
#include <unsupported/Eigen/NumericalDiff>
#endif

namespace halftone::lab {

double relative_error(const Law& law, std::span<const double> constants, const LawRow& row) {
  return std::log(law.loss(constants, row) / row.loss);
}

#if defined(HALFTONE_HAVE_EIGEN)
namespace {

/// The errors of all rows as a function of the logarithms of the constants, as Eigen calls it.
struct Errors {
  using Scalar = double;
  using InputType = Eigen::VectorXd;
  using ValueType = Eigen::VectorXd;
  using JacobianType = Eigen::MatrixXd;
  enum { InputsAtCompileTime = Eigen::Dynamic, ValuesAtCompileTime = Eigen::Dynamic };

  const Law& law;
  std::span<const LawRow> rows;

  int inputs() const { return int(law.names.size()); }
  int values() const { return int(rows.size()); }
  int operator()(const InputType& logs, ValueType& errors) const {
    const std::vector<double> constants = constants_of(logs);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double error = relative_error(law, constants, rows[i]);
      errors[Eigen::Index(i)] = std::isfinite(error) ? error : 1e3;
    }
    return 0;
  }
  static std::vector<double> constants_of(const InputType& logs) {
    std::vector<double> constants;
    for (const double x : logs) constants.push_back(std::exp(std::clamp(x, -30.0, 30.0)));
    return constants;
  }
};

}  // namespace

std::vector<double> fitted(const Law& law, std::span<const LawRow> rows,
                           std::span<const double> start, bool thorough) {
  if (rows.size() < law.names.size())
    fail<UsageError>("fit", "the law ", law.name, " has ", law.names.size(),
                     " constants, got only ", rows.size(), " runs. Give more runs.");
  Eigen::VectorXd best;
  double least = std::numeric_limits<double>::infinity();
  // Exponents and gammas may be several times smaller or larger than their starting values.
  for (const double factor : {1.0, 0.3, 3.0, 0.1, 6.0}) {
    Eigen::VectorXd logs(Eigen::Index(law.names.size()));
    for (std::size_t i = 0; i < start.size(); ++i)
      logs[Eigen::Index(i)] = std::log(start[i] * (i % 2 == 1 ? factor : 1.0));
    Eigen::NumericalDiff<Errors> errors(Errors{law, rows});
    Eigen::LevenbergMarquardt<Eigen::NumericalDiff<Errors>> method(errors);
    method.parameters.maxfev = 2000;
    method.minimize(logs);
    if (method.fnorm < least) least = method.fnorm, best = logs;
    if (!thorough) break;
  }
  return Errors::constants_of(best);
}
#else
std::vector<double> fitted(const Law&, std::span<const LawRow>, std::span<const double>, bool) {
  fail<UsageError>("fit", "this build has no Eigen. Install libeigen3-dev, and configure again.");
}
#endif

}  // namespace halftone::lab
