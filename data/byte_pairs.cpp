// Words, merges, and the training of a vocabulary.
#include <halftone/data/byte_pairs.h>

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <set>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>

namespace halftone::data {

namespace {
constexpr std::string_view byte_pairs_op = "BytePairTokenizer";
}  // namespace

// Alternatives of an expression are tried in its order. Only the last but one needs to look back:
// the last of several spaces before a word belongs to the word.

namespace {
enum class Kind { letter, number, space, other };

struct Character {
  Kind kind;
  std::size_t length;
};

Character character_at(std::string_view text, std::size_t at) {
  const auto [value, length] = code_point_at(text, at);
  if (length == 0) return {Kind::other, 1};
  if (is_letter(value)) return {Kind::letter, length};
  if (is_number(value)) return {Kind::number, length};
  return {is_space(value) ? Kind::space : Kind::other, length};
}

bool is_of_kind(std::string_view text, std::size_t at, Kind kind) {
  return at < text.size() && character_at(text, at).kind == kind;
}

/// Returns the end of the run of at most `most` characters of one kind that starts at `at`.
std::size_t end_of_run(std::string_view text, std::size_t at, Kind kind,
                       std::size_t most = std::string_view::npos) {
  for (std::size_t count = 0; at < text.size() && count < most; ++count) {
    const Character next = character_at(text, at);
    if (next.kind != kind) break;
    at += next.length;
  }
  return at;
}

std::size_t end_of_newlines(std::string_view text, std::size_t at) {
  while (at < text.size() && (text[at] == '\r' || text[at] == '\n')) ++at;
  return at;
}

constexpr std::string_view contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

/// Returns the length of one of the contractions at the start, in lower case only; else 0.
std::size_t contraction(std::string_view text) {
  for (const std::string_view ending : contractions)
    if (text.starts_with(ending)) return ending.size();
  return 0;
}

/// The same in any case. U+017F, the long s, is an s in another case.
std::size_t contraction_in_any_case(std::string_view text) {
  if (!text.starts_with('\'')) return 0;
  if (text.substr(1).starts_with("\u017f")) return 3;
  std::string small(text.substr(0, 3));
  for (char& c : small)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return contraction(small);
}

/// Returns a run of spaces, without its last one if text follows and the run has several.
std::size_t spaces(std::string_view text) {
  std::size_t end = 0, last = 0;
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (next.kind != Kind::space) return last > 0 ? last : end;
    last = end, end += next.length;
  }
  return end;
}

/// Returns the length of a word by GPT-2's expression.
std::size_t word_of_gpt2(std::string_view text) {
  if (const std::size_t length = contraction(text)) return length;
  const std::size_t start = text.size() > 1 && text[0] == ' ' ? 1 : 0;
  const Kind kind = character_at(text, start).kind;
  if (kind == Kind::space) return spaces(text);
  return end_of_run(text, start, kind);
}

/// Returns the length of a word by Llama 3's expression, with up to `digits` numbers together.
std::size_t word_of_llama3(std::string_view text, std::size_t digits) {
  if (const std::size_t length = contraction_in_any_case(text)) return length;
  const auto [kind, length] = character_at(text, 0);
  const bool newline = text[0] == '\r' || text[0] == '\n';
  if (kind == Kind::letter) return end_of_run(text, 0, Kind::letter);
  if (kind == Kind::number) return end_of_run(text, 0, Kind::number, digits);
  if (!newline && is_of_kind(text, length, Kind::letter))
    return end_of_run(text, length, Kind::letter);
  if (kind == Kind::other) return end_of_newlines(text, end_of_run(text, 0, Kind::other));
  if (text[0] == ' ' && is_of_kind(text, 1, Kind::other))
    return end_of_newlines(text, end_of_run(text, 1, Kind::other));
  const std::string_view run = text.substr(0, end_of_run(text, 0, Kind::space));
  if (const std::size_t last = run.find_last_of("\r\n"); last != std::string_view::npos)
    return last + 1;
  return spaces(text);
}
}  // namespace

std::string_view first_word(std::string_view text, Splitting splitting) {
  switch (splitting) {
    case Splitting::gpt2: return text.substr(0, word_of_gpt2(text));
    case Splitting::llama3: return text.substr(0, word_of_llama3(text, 3));
    case Splitting::qwen2: return text.substr(0, word_of_llama3(text, 1));
  }
  return text;
}

// Added tokens.

TextFinder::TextFinder(std::vector<std::pair<std::string, std::size_t>> texts)
    : texts_(std::move(texts)) {
  std::ranges::sort(texts_);
  for (const auto& [text, number] : texts_) begins_[static_cast<unsigned char>(text[0])] = true;
}

TextFinder::Found TextFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    Found found;
    // The texts that agree with the first `length` bytes are neighbors; the shortest is first.
    auto first = texts_.begin(), last = texts_.end();
    for (std::size_t length = 0; first != last; ++length) {
      for (; first != last && first->first.size() == length; ++first)
        found = {at, length, first->second};
      if (at + length >= text.size()) break;
      const auto byte = static_cast<unsigned char>(text[at + length]);
      const auto byte_of = [&](const auto& one) {
        return static_cast<unsigned char>(one.first[length]);
      };
      first = std::ranges::lower_bound(first, last, byte, {}, byte_of);
      last = std::ranges::upper_bound(first, last, byte, {}, byte_of);
    }
    if (found.length > 0) return found;
  }
  return {};
}

void BytePairTokenizer::finish() {
  for (int byte = 0; byte < 256; ++byte)
    token_of_byte_[std::size_t(byte)] = token_of_.at(std::string(1, char(byte)));
  std::vector<std::pair<std::string, std::size_t>> in_text, in_normalized;
  for (std::size_t i = 0; i < added_.size(); ++i) {
    const bool later = added_[i].normalized;
    (later ? in_normalized : in_text)
        .emplace_back(later && nfc_ ? nfc(added_[i].text) : added_[i].text, i);
  }
  in_text_ = TextFinder(std::move(in_text)), in_normalized_ = TextFinder(std::move(in_normalized));
}

// Merges one word with a linked list of its symbols and a heap of possible merges, so that a word
// of n bytes costs n log n. Otherwise a file of one endless word would cost n squared. Equivalent
// to: while any neighbors can be merged, merge the leftmost pair of the lowest rank.

namespace {
struct Symbol {
  int32_t token;
  int32_t before, after;  // positions of the neighbors; -1: none
};

/// A possible merge of the symbol at `left` and its successor, as they were when it was found.
struct PossibleMerge {
  int32_t rank, left, left_token, right_token, merged;
  bool operator<(const PossibleMerge& other) const {  // the heap's top is the largest
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
  if (ignore_merges_)
    if (const auto whole = token_of_.find(std::string(word)); whole != token_of_.end())
      return tokens.push_back(whole->second);
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::size_t i = 0; i < word.size(); ++i)
    symbols.push_back({token_of_byte_[static_cast<unsigned char>(word[i])], int32_t(i) - 1,
                       i + 1 < word.size() ? int32_t(i) + 1 : -1});
  std::priority_queue<PossibleMerge> candidates;
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
    const PossibleMerge best = candidates.top();
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

/// The tokens of one text.
class BytePairTokenizer::Encoding {
 public:
  Encoding(const BytePairTokenizer& tokenizer, std::size_t bytes) : tokenizer_(tokenizer) {
    tokens.reserve(bytes / 4);
  }

  /// Encodes a text in which no token was searched yet.
  void text(std::string_view text) {
    without(tokenizer_.in_text_, text, [this](std::string_view part) {
      if (tokenizer_.nfc_) part = kept_.emplace_back(nfc(part));
      without(tokenizer_.in_normalized_, part, [this](std::string_view words) { split(words); });
    });
  }

  std::vector<int64_t> tokens{};

 private:
  /// Takes the added tokens out of a text, and calls f(part) with the parts between them.
  template <class F> void without(const TextFinder& finder, std::string_view text, const F& f) {
    std::size_t done = 0;
    for (std::size_t from = 0; from < text.size();) {
      const TextFinder::Found found = finder.find(text, from);
      if (found.at == std::string_view::npos) break;
      from = found.at + found.length;
      const AddedToken& token = tokenizer_.added_[found.number];
      std::size_t begin = found.at, end = from;
      if (token.takes_left) begin = std::max(start_of_spaces(text.substr(0, begin)), done);
      if (token.takes_right) end = end_of_run(text, end, Kind::space);
      if (done < begin) f(text.substr(done, begin - done));
      tokens.push_back(token.token);
      done = end;
    }
    if (done < text.size()) f(text.substr(done));
  }

  /// Returns where the spaces at the end of a text begin.
  static std::size_t start_of_spaces(std::string_view text) {
    std::size_t start = text.size();
    for (std::size_t at = start; at-- > 0;) {
      if ((static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80) continue;  // inside a character
      if (end_of_run(text.substr(0, start), at, Kind::space) != start) break;
      start = at;
    }
    return start;
  }

  void split(std::string_view text) {
    while (!text.empty()) {
      const std::string_view word = first_word(text, tokenizer_.splitting_);
      text.remove_prefix(word.size());
      if (const auto found = seen_.find(word); found != seen_.end()) {
        const auto [first, last] = found->second;
        for (std::size_t i = first; i < last; ++i) tokens.push_back(tokens[i]);
        continue;
      }
      const std::size_t before = tokens.size();
      tokenizer_.merge_word(word, tokens);
      if (word.size() <= longest_remembered) seen_.emplace(word, std::pair(before, tokens.size()));
    }
  }

  const BytePairTokenizer& tokenizer_;
  std::deque<std::string> kept_{};  // normalized parts, which seen_ refers to
  std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>>
      seen_{};  // part of tokens
};

std::vector<int64_t> BytePairTokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  return or_no_memory(byte_pairs_op, int64_t(text.size() * sizeof(int64_t)), [&] {
    if (text.size() > longest_text)
      fail<UsageError>(byte_pairs_op, "the text is too long: ", text.size(),
                       " bytes, the limit is ", longest_text, ". Encode it in parts.");
    Encoding encoding(*this, text.size());
    if (options.add_special_tokens) encoding.tokens = before_;
    encoding.text(text);
    if (options.add_special_tokens)
      encoding.tokens.insert(encoding.tokens.end(), after_.begin(), after_.end());
    return std::move(encoding.tokens);
  });
}

std::string BytePairTokenizer::decode(std::span<const int64_t> tokens) const {
  return or_no_memory(byte_pairs_op, int64_t(tokens.size_bytes()), [&] {
    std::string text;
    for (const int64_t token : tokens) {
      if (token < 0 || token >= vocabulary_size())
        fail<UsageError>(byte_pairs_op, "there is no token ", token, ": the vocabulary has ",
                         vocabulary_size(), ". Pass tokens from 0 to vocabulary_size() - 1.");
      text += bytes_of_[std::size_t(token)];
    }
    return text;
  });
}

std::optional<int64_t> BytePairTokenizer::token(std::string_view bytes) const {
  if (const auto found = token_of_.find(std::string(bytes)); found != token_of_.end())
    return found->second;
  const auto added = std::ranges::find(added_, bytes, &AddedToken::text);
  return added == added_.end() ? std::nullopt : std::optional<int64_t>(added->token);
}

// Training. A word is a list of tokens with its number of occurrences. A heap has the pairs by
// their counts, of which some are too large by now: counts fall as other pairs are merged. Such a
// count is corrected when its pair is at the top.

namespace {
using TokenPair = std::pair<int32_t, int32_t>;

struct CountedPair {
  int64_t count;
  TokenPair pair;
  bool operator<(const CountedPair& other) const {  // the heap's top is the largest
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

struct CountedWord {
  std::vector<int32_t> tokens;
  int64_t count;
};

uint64_t key_of(TokenPair pair) {
  return uint64_t(uint32_t(pair.first)) << 32 | uint32_t(pair.second);
}

void check_training(const BytePairTraining& options) {
  const auto bytes_and_special = 256 + std::ssize(options.special_tokens);
  if (options.vocabulary_size < bytes_and_special || options.vocabulary_size > int64_t(1) << 24)
    fail<UsageError>(byte_pairs_op, "the size of the vocabulary is ", options.vocabulary_size,
                     ". Give a number from ", bytes_and_special,
                     ", for the bytes and the special tokens, to 2^24.");
  if (options.min_frequency < 1)
    fail<UsageError>(byte_pairs_op, "min_frequency is ", options.min_frequency,
                     ". Give a number from 1 on.");
  std::set<std::string_view> known;
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || code_point_at(token, 0).length == token.size())
      fail<UsageError>(byte_pairs_op, "the special token ", in_quotes(token),
                       " has fewer than two characters. Use one such as \"<|end|>\".");
    for (std::size_t at = 0; at < token.size(); at += code_point_at(token, at).length)
      if (code_point_at(token, at).length == 0)
        fail<UsageError>(byte_pairs_op, "the special token ", in_quotes(token),
                         " is not UTF-8. Use letters.");
    if (!known.insert(token).second)
      fail<UsageError>(byte_pairs_op, "the special token ", in_quotes(token),
                       " is given twice. Give it once.");
  }
}

/// Learns a vocabulary and its merges.
class PairTraining {
 public:
  explicit PairTraining(const BytePairTraining& options) : options_(options) {
    for (const std::string& text : options.special_tokens) {
      // A merge that gives the same text gives this token.
      if (std::ranges::all_of(text, [](char c) { return c >= '!' && c <= '~'; }))
        token_of.emplace(text, int32_t(bytes_of.size()));
      bytes_of.push_back(text);
    }
    // In the order of the characters that represent bytes in files: those that are printable first.
    for (const bool printable : {true, false})
      for (int byte = 0; byte < 256; ++byte)
        if (is_printable_byte(byte) == printable) token_for(std::string(1, char(byte)));
  }

  void learn(std::string_view text) {
    count_words(text);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const CountedWord& word = words_[i];
      for (std::size_t k = 0; k + 1 < word.tokens.size(); ++k)
        change({word.tokens[k], word.tokens[k + 1]}, word.count, i);
    }
    push_changed();
    while (std::ssize(bytes_of) < options_.vocabulary_size && !heap_.empty()) {
      CountedPair top = heap_.top();
      heap_.pop();
      if (const int64_t now = pairs_[key_of(top.pair)].count; top.count != now) {
        top.count = now;
        if (now > 0) heap_.push(top);
        continue;
      }
      if (top.count < options_.min_frequency) break;
      if (merged_.insert(key_of(top.pair)).second) merge(top.pair);
    }
  }

  std::vector<std::string> bytes_of{};
  std::unordered_map<std::string, int32_t> token_of{};
  std::vector<std::pair<uint64_t, int32_t>> merges{};

 private:
  struct PairUse {
    int64_t count = 0;
    std::set<std::size_t> words{};  // in which it occurred
  };

  int32_t token_for(const std::string& bytes) {
    const auto [found, is_new] = token_of.emplace(bytes, int32_t(bytes_of.size()));
    if (is_new) bytes_of.push_back(bytes);
    return found->second;
  }

  void count_words(std::string_view text) {
    std::map<std::string_view, int64_t> counts;
    while (!text.empty()) {
      const std::string_view word = first_word(text, options_.splitting);
      text.remove_prefix(word.size());
      ++counts[word];
    }
    for (const auto& [word, count] : counts) {
      words_.push_back({.tokens = {}, .count = count});
      for (const char byte : word)
        words_.back().tokens.push_back(token_of.at(std::string(1, byte)));
    }
  }

  void change(TokenPair pair, int64_t by, std::size_t word) {
    PairUse& use = pairs_[key_of(pair)];
    use.count += by;
    if (by <= 0) return;
    use.words.insert(word);
    changed_.insert(pair);
  }

  void push_changed() {
    for (const TokenPair& pair : changed_)
      if (const int64_t count = pairs_[key_of(pair)].count; count > 0) heap_.push({count, pair});
    changed_.clear();
  }

  void merge(TokenPair pair) {
    const auto &left = bytes_of[std::size_t(pair.first)],
               &right = bytes_of[std::size_t(pair.second)];
    const int32_t merged = token_for(left + right);
    merges.emplace_back(key_of(pair), merged);
    const std::set<std::size_t> places = std::move(pairs_[key_of(pair)].words);
    pairs_[key_of(pair)].words.clear();
    for (const std::size_t place : places) merge_in(place, pair, merged);
    push_changed();
  }

  void merge_in(std::size_t place, TokenPair pair, int32_t merged) {
    const int64_t count = words_[place].count;
    const std::vector<int32_t> before = std::move(words_[place].tokens);
    std::vector<int32_t> after;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (i + 1 == before.size() || TokenPair(before[i], before[i + 1]) != pair) {
        after.push_back(before[i]);
        continue;
      }
      if (!after.empty()) {
        change({after.back(), pair.first}, -count, place);
        change({after.back(), merged}, count, place);
      }
      after.push_back(merged);
      if (++i; i + 1 < before.size()) {
        change({pair.second, before[i + 1]}, -count, place);
        change({merged, before[i + 1]}, count, place);
      }
    }
    words_[place].tokens = std::move(after);
  }

  const BytePairTraining& options_;
  std::vector<CountedWord> words_{};
  std::unordered_map<uint64_t, PairUse> pairs_{};
  std::set<TokenPair> changed_{};  // counts that grew
  std::priority_queue<CountedPair> heap_{};
  std::set<uint64_t> merged_{};
};
}  // namespace

BytePairTokenizer BytePairTokenizer::train(std::string_view text, const BytePairTraining& options) {
  check_training(options);
  return or_no_memory(byte_pairs_op, int64_t(text.size()), [&] {
    PairTraining training(options);
    training.learn(text);
    BytePairTokenizer result;
    result.splitting_ = options.splitting;
    for (const std::string& special : options.special_tokens)
      result.added_.push_back(
          {.text = special, .token = std::ssize(result.added_), .special = true});
    result.bytes_of_ = std::move(training.bytes_of);
    result.words_ = result.bytes_of_.size();
    result.token_of_ = std::move(training.token_of);
    for (const auto& [pair, merged] : training.merges)
      result.merges_.emplace(pair, Merge{int32_t(result.merges_.size()), merged});
    result.finish();
    return result;
  });
}

}  // namespace halftone::data
