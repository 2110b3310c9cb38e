// Lists and ranges of seeds.
#include <algorithm>
#include <charconv>
#include <set>

#include <halftone/core/error.h>
#include <halftone/lab/run.h>

namespace halftone::lab {

namespace {
constexpr std::size_t most_seeds = 10'000;

uint64_t seed_in(const std::string& text, const std::string& all) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, seed);
  if (text.empty() || read.ec != std::errc() || read.ptr != end)
    fail<UsageError>("--seeds", in_quotes(all),
                     ": a seed is a whole number from 0 to 2^64 - 1, got ", in_quotes(text),
                     ". Write 0..4 or 0,3,7.");
  return seed;
}
}  // namespace

std::vector<uint64_t> seeds_of(const std::string& text) {
  std::vector<uint64_t> seeds;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    at = end + 1;
    const std::size_t dots = part.find("..");
    const uint64_t first = seed_in(part.substr(0, dots), text);
    const uint64_t last = dots == std::string::npos ? first : seed_in(part.substr(dots + 2), text);
    if (last < first || last - first >= most_seeds)
      fail<UsageError>("--seeds", in_quotes(part), " is not a range of at most ", most_seeds,
                       " seeds. Write first..last.");
    for (uint64_t i = 0; i <= last - first; ++i) seeds.push_back(first + i);
  }
  if (std::set(seeds.begin(), seeds.end()).size() != seeds.size())
    fail<UsageError>("--seeds", in_quotes(text), " has a seed twice. Give each once.");
  return seeds;
}

}  // namespace halftone::lab
