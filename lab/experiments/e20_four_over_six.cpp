// E20. NVFP4 with Four Over Six (arXiv 2512.02010) against NVFP4: does the smaller error of each
// tensor become a smaller loss? First the squared error of normal numbers, then trainings of a
// small GPT from the same seeds. bf16 is in the table to show how much NVFP4 costs.
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e20 {

/// Returns the squared error of Four Over Six over that of NVFP4, on rows of normal numbers.
double error_ratio() {
  manual_seed(20);
  const Tensor x = randn({256, 1024});
  const Quantizer nvfp4 = *quantizer_named("nvfp4");
  Quantizer four_over_six = nvfp4;
  four_over_six.scaling.targets = {6, 4};
  four_over_six.scaling.scale_max = 256;
  const double plain = signal_to_noise(x, quantize(x, nvfp4)),
               chosen = signal_to_noise(x, quantize(x, four_over_six));
  return std::pow(10, (plain - chosen) / 10);
}

void run(Findings& found) {
  const double ratio = error_ratio();
  found.out() << "squared error of normal numbers, Four Over Six over NVFP4: " << fixed(ratio, 3)
              << "\n\n";
  found.at_most("squared error, over NVFP4's", ratio, 0.9);
  const PairedRuns runs(found, "gpt_small", {"nvfp4", "nvfp4_four_over_six", "amp-bf16"},
                        found.thorough() ? 24 : 8, 200);
  const Interval gain = runs.difference(1), cost = runs.difference(0, 2);
  found.out() << "nvfp4 against amp-bf16: " << signed_percent(cost) << '\n';
  found.at_most("loss of Four Over Six beyond NVFP4's, upper end of 95 %", gain.mean + gain.half,
                0.005);
  found.within("loss of NVFP4 beyond bf16's, mean", cost.mean, -0.005, 0.02);
}

}  // namespace e20

const Experiment found::e20{
    "E20",
    "Four Over Six lowers NVFP4's squared error by more than a tenth; the loss of a small GPT is "
    "not higher with it than with NVFP4 (arXiv 2512.02010 reports losses closer to bf16's).",
    e20::run};

}  // namespace halftone::lab
