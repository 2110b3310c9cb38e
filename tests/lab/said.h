// A whole call of halftone-lab within the test's process.
#pragma once

#include <string>
#include <vector>

#include <halftone/lab/lab.h>

#include "lab/captured.h"

namespace halftone::test {

/// The texts that a call printed to standard output and standard error, and its exit code.
struct Said {
  int code = 0;
  std::string output{}, errors{};
};

/// Runs `halftone-lab WORD...` with a workload of the test's own.
inline Said said_by(std::vector<std::string> words, const lab::NamedWorkload& own) {
  words.insert(words.begin(), "halftone-lab");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  const Captured output(std::cout), errors(std::cerr);
  const int code = lab::main(int(pointers.size()), pointers.data(), own);
  return {code, output.text(), errors.text()};
}

}  // namespace halftone::test
