// Helpers that several experiments use.
#include <halftone/lab/setting.h>

#include <cmath>

#include <halftone/core/error.h>
#include <halftone/core/tensor.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

amp::Strategy policy_of(std::string_view name, std::string_view extends, std::string_view more) {
  PlainText text;
  text << R"({"halftone_policy": 1, "name": ")" << name << R"(", "extends": ")" << extends << '"'
       << (more.empty() ? "" : ", ") << more << '}';
  return policy::parse(text.str(), name);
}

std::string hash_of(std::span<const Tensor> tensors) {
  policy::Fingerprint fingerprint;
  for (const Tensor& x : tensors) {
    // Uses the order of the indices: a clone would keep the strides of x.
    const Tensor host = views::contiguous(x.detach().to(Device::cpu()));
    PlainText head;
    head << host.shape() << ' ' << host.dtype();
    fingerprint.add(head.str());
    fingerprint.add({reinterpret_cast<const char*>(host.raw_data()), std::size_t(host.bytes())});
  }
  return fingerprint.text();
}

double root_mean_square(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum / double(x.size()));
}

double signal_to_noise(const Tensor& x, const Tensor& y) {
  const std::vector<double> before = x.to_vector<double>(), after = y.to_vector<double>();
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < before.size(); ++i)
    signal += before[i] * before[i], noise += (before[i] - after[i]) * (before[i] - after[i]);
  return 10 * std::log10(signal / noise);
}

}  // namespace halftone::lab
