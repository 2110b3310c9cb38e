// Measures the error of a sum of N gradients by wire format (distributed/wire.h). Each gradient is
// rounded once and added in f32, in order, as halftone does; or rounded again at every hop of a
// ring or of a tree, like all-reduces that add in the wire's dtype. Then it measures the error
// after many steps of the same gradients. Prints relative RMS errors against sums in f64; gradients
// are normal, with a mean of 0.1 standard deviations.
#include <cmath>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>

#include <halftone/halftone.h>

namespace ht = halftone;
using ht::distributed::WireFormat;

namespace {

struct Options {
  std::vector<std::string> wires{"own",     "bf16",       "bf16-sr", "f16",
                                 "f8_e4m3", "f8_e4m3-sr", "f8_e5m2"};
  std::vector<int> ranks{2, 4, 8, 16, 64, 256};
  int64_t elements = 1 << 16;
  int steps = 64;
};

/// Returns a rank's gradient in a step: the same for all wire formats.
ht::Tensor gradient(int64_t elements, int rank, int step) {
  ht::manual_seed(uint64_t(1 + rank) << 20 | uint64_t(step));
  const ht::Tensor x = ht::randn({elements});
  for (float& value : std::span(x.data<float>(), std::size_t(elements)))
    value = value * 1e-3F + 1e-4F;
  return x;
}

/// Sends a tensor through a wire format, with a new key each time.
ht::Tensor rounded(const ht::Tensor& x, const WireFormat& wire, uint64_t& calls,
                   const ht::Tensor& rest = {}) {
  return from_wire(to_wire(x, wire, {1, ++calls << 32}, {rest}));
}

ht::Tensor sum_in_order(const std::vector<ht::Tensor>& terms) {
  ht::Tensor sum = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) sum = sum + terms[i];
  return sum;
}

ht::Tensor along_ring(const std::vector<ht::Tensor>& terms, const WireFormat& wire,
                      uint64_t& calls) {
  ht::Tensor sum = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) sum = rounded(sum + terms[i], wire, calls);
  return sum;
}

ht::Tensor along_tree(std::vector<ht::Tensor> terms, const WireFormat& wire, uint64_t& calls) {
  while (terms.size() > 1) {
    std::vector<ht::Tensor> next;
    for (std::size_t i = 0; i + 1 < terms.size(); i += 2)
      next.push_back(rounded(terms[i] + terms[i + 1], wire, calls));
    if (terms.size() % 2 == 1) next.push_back(terms.back());
    terms = std::move(next);
  }
  return terms[0];
}

std::vector<double> add_exactly(std::vector<double> sum, const ht::Tensor& x) {
  sum.resize(std::size_t(x.numel()));
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += double(x.data<float>()[i]);
  return sum;
}

double relative_error(const std::vector<double>& exact, const std::vector<double>& found) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (found[i] - exact[i]) * (found[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

struct Errors {
  double once, ring, tree;
};

Errors errors_of(int ranks, const WireFormat& wire, int64_t elements) {
  std::vector<double> exact;
  std::vector<ht::Tensor> sent;
  uint64_t calls = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const ht::Tensor x = gradient(elements, rank, 0);
    exact = add_exactly(std::move(exact), x);
    sent.push_back(rounded(x, wire, calls));
  }
  const auto error = [&](const ht::Tensor& sum) {
    return relative_error(exact, add_exactly({}, sum));
  };
  return {error(sum_in_order(sent)), error(along_ring(sent, wire, calls)),
          error(along_tree(sent, wire, calls))};
}

/// Returns the error of the sum over `steps` steps.
double error_of_steps(int steps, int ranks, const WireFormat& wire, int64_t elements) {
  std::vector<double> exact, found;
  std::vector<ht::Tensor> rests;
  uint64_t calls = 0;
  for (int rank = 0; rank < ranks; ++rank)
    rests.push_back(wire.error_feedback ? ht::zeros({elements}) : ht::Tensor{});
  for (int step = 0; step < steps; ++step) {
    std::vector<ht::Tensor> sent;
    for (int rank = 0; rank < ranks; ++rank) {
      const ht::Tensor x = gradient(elements, rank, step);
      exact = add_exactly(std::move(exact), x);
      sent.push_back(rounded(x, wire, calls, rests[std::size_t(rank)]));
    }
    found = add_exactly(std::move(found), sum_in_order(sent));
  }
  return relative_error(exact, found);
}

void print_sums(const Options& o) {
  std::printf("%-34s", "wire");
  for (const int ranks : o.ranks) std::printf("  N = %-5d", ranks);
  std::printf("\n");
  for (const std::string& name : o.wires) {
    std::vector<Errors> all;
    for (const int ranks : o.ranks)
      all.push_back(errors_of(ranks, WireFormat::named(name), o.elements));
    const auto line = [&](const char* how, double Errors::*which) {
      std::printf("%-12s%-22s", name.c_str(), how);
      for (const Errors& errors : all) std::printf("  %.2e ", errors.*which);
      std::printf("\n");
    };
    line("once, sum in f32", &Errors::once);
    if (WireFormat::named(name) == WireFormat{}) continue;  // nothing is rounded at hops
    line("at every hop, ring", &Errors::ring);
    line("at every hop, tree", &Errors::tree);
    std::fflush(stdout);
  }
}

void print_steps(const Options& o) {
  constexpr int ranks = 4;
  std::printf("\nthe sum of %d steps, N = %d\n%-34s  error\n", o.steps, ranks, "wire");
  for (const std::string& name : o.wires)
    for (const char* feedback : {"", "+feedback"}) {
      const WireFormat wire = WireFormat::named(name + feedback);
      std::printf("%-34s  %.2e\n", (name + feedback).c_str(),
                  error_of_steps(o.steps, ranks, wire, o.elements));
      std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Errors of sums of gradients, by wire format.");
  app.add_option("--wire", o.wires, "as in distributed/wire.h; several by commas")->delimiter(',');
  app.add_option("--ranks", o.ranks, "several by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--elements", o.elements, "elements of a gradient")->check(CLI::PositiveNumber);
  app.add_option("--steps", o.steps, "steps of the second table; 0: none")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    print_sums(o);
    if (o.steps > 0) print_steps(o);
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
