// Merges one word with a linked list of its symbols and a heap of possible merges, so that a word
// of n bytes costs n log n. Otherwise a file of one endless word would cost n squared. Equivalent
// to: while any neighbors can be merged, merge the leftmost pair of the lowest rank.
#include <halftone/data/text.h>

#include <queue>
#include <utility>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>
#include <halftone/data/text/byte_pair_words.h>

namespace halftone::data {

namespace {
struct Symbol {
  int32_t token;
  int32_t before, after;  // positions of the neighbors; -1: none
};

/// A possible merge of the symbol at `left` and its successor, as they were when it was found.
struct Candidate {
  int32_t rank, left, left_token, right_token, merged;
  bool operator<(const Candidate& other) const {  // the heap's top is the largest
    return std::pair(rank, left) > std::pair(other.rank, other.left);
  }
};

constexpr std::size_t longest_remembered = 64;  // bytes of a word
constexpr std::size_t longest_text = std::size_t(1) << 30;
}  // namespace

const BytePairTokenizer::Merge* BytePairTokenizer::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(uint64_t(uint32_t(left)) << 32 | uint32_t(right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairTokenizer::merge_word(std::string_view word, std::vector<int64_t>& tokens) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::size_t i = 0; i < word.size(); ++i)
    symbols.push_back({token_of_.at(std::string(1, word[i])), int32_t(i) - 1,
                       i + 1 < word.size() ? int32_t(i) + 1 : -1});
  std::priority_queue<Candidate> candidates;
  const auto consider = [&](int32_t left) {
    if (left < 0) return;
    const Symbol& first = symbols[std::size_t(left)];
    if (first.after < 0) return;
    const Symbol& second = symbols[std::size_t(first.after)];
    if (const Merge* merge = merge_of(first.token, second.token))
      candidates.push({merge->rank, left, first.token, second.token, merge->merged});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) consider(int32_t(i));

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[std::size_t(best.left)];
    if (left.token != best.left_token || left.after < 0 ||
        symbols[std::size_t(left.after)].token != best.right_token)
      continue;  // another merge took one of them
    Symbol& right = symbols[std::size_t(left.after)];
    left.token = best.merged;
    left.after = right.after;
    right.token = -1;
    if (left.after >= 0) symbols[std::size_t(left.after)].before = best.left;
    consider(best.left);
    consider(left.before);
  }
  for (int32_t i = 0; i >= 0; i = symbols[std::size_t(i)].after)
    tokens.push_back(symbols[std::size_t(i)].token);
}

std::vector<int64_t> BytePairTokenizer::encode(std::string_view text) const {
  return or_no_memory("BytePairTokenizer", int64_t(text.size() * sizeof(int64_t)), [&] {
    if (text.size() > longest_text)
      fail<UsageError>("BytePairTokenizer", "the text is too long: ", text.size(),
                       " bytes, the limit is ", longest_text, ". Encode it in parts.");
    std::vector<int64_t> tokens;
    std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>>
        seen;  // part of tokens
    while (!text.empty()) {
      const std::string_view word = first_word(text);
      text.remove_prefix(word.size());
      if (const auto found = seen.find(word); found != seen.end()) {
        const auto [first, last] = found->second;
        for (std::size_t i = first; i < last; ++i) tokens.push_back(tokens[i]);
        continue;
      }
      const std::size_t before = tokens.size();
      merge_word(word, tokens);
      if (word.size() <= longest_remembered) seen.emplace(word, std::pair(before, tokens.size()));
    }
    return tokens;
  });
}

std::string BytePairTokenizer::decode(std::span<const int64_t> tokens) const {
  return or_no_memory("BytePairTokenizer", int64_t(tokens.size_bytes()), [&] {
    std::string text;
    for (const int64_t token : tokens) {
      if (token < 0 || token >= vocabulary_size())
        fail<UsageError>("BytePairTokenizer", "there is no token ", token, ": the vocabulary has ",
                         vocabulary_size(), ". Pass tokens from 0 to vocabulary_size() - 1.");
      text += bytes_of_[std::size_t(token)];
    }
    return text;
  });
}

std::optional<int64_t> BytePairTokenizer::token(std::string_view bytes) const {
  const auto found = token_of_.find(std::string(bytes));
  return found == token_of_.end() ? std::nullopt : std::optional<int64_t>(found->second);
}

}  // namespace halftone::data
