// onednn_fuzz [COUNT [SEED [PRIMITIVE [DTYPE]]]]: compares COUNT random calls of a oneDNN primitive
// (of all, in f32 and bf16, if none is named) with the reference, to the bit
// (onednn_geometries.h), and prints what differs. Exit status 1 if anything does.
// ONEDNN_MAX_CPU_ISA chooses an instruction set.
#include <cstdio>
#include <cstdlib>

#include "onednn_geometries.h"

using namespace halftone;

int main(int argc, char** argv) {
  const long count = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 40000;
  const auto seed = unsigned(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
  const std::string_view only = argc > 3 ? argv[3] : "", in = argc > 4 ? argv[4] : "";
  long different = 0;
  for (const DType dtype : {f32, bf16})
    for (std::size_t p = 0; p < test::primitive_names().size(); ++p) {
      if ((!only.empty() && only != test::primitive_names()[p]) ||
          (!in.empty() && in != name(dtype)))
        continue;
      std::mt19937 random(seed);
      long served = 0, here = 0;
      for (long i = 0; i < count; ++i) {
        const test::Comparison one = test::compare_onednn(test::Primitive(p), dtype, random);
        served += one.served;
        if (one.difference.empty()) continue;
        if (++here <= 10) std::printf("  %s\n", one.difference.c_str());
      }
      std::printf("%-22s %-5s %ld calls, %ld served by oneDNN, %ld differ\n",
                  std::string(test::primitive_names()[p]).c_str(), std::string(name(dtype)).c_str(),
                  count, served, here);
      std::fflush(stdout);
      different += here;
    }
  return different == 0 ? 0 : 1;
}
