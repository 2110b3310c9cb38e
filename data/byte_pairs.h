// Byte-pair encoding as GPT-2, Llama 3 and Qwen2 do it (Sennrich et al. 2016, arXiv 1508.07909;
// Radford et al. 2019): text is split into words, each word into bytes, and neighbors are merged in
// the order in which the merges were learned. Every string of bytes has an encoding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <halftone/data/text.h>

namespace halftone::data {

// The regular expressions, computed by hand with the whole of Unicode 16 for \p{L}, \p{N} and \s:
//   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//             ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   qwen2   as llama3, with \p{N} for \p{N}{1,3}

/// The regular expression that splits text into the words within which byte pairs are merged.
enum class Splitting : uint8_t { gpt2, llama3, qwen2 };

/// Returns the first word of a text that is not empty. Words follow each other without gaps. A byte
/// that is not UTF-8 counts as one character other than a letter, number or space.
std::string_view first_word(std::string_view text, Splitting splitting = Splitting::gpt2);

/// Returns whether a byte represents itself in files, by GPT-2's table. Each other byte is written
/// as a character: in their order, U+0100, U+0101, ...
constexpr bool is_printable_byte(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

/// A token that is found in a text before the text is split into words, such as "<|eot_id|>".
struct AddedToken {
  std::string text{};
  int64_t token = 0;
  bool special = false;  // a control token; encode() treats it as the others
  bool takes_left = false, takes_right = false;  // also takes spaces there ("lstrip", "rstrip")
  bool normalized = false;                       // is searched for after normalization
};

/// Finds the first place in a text where one of several given texts begins, and the longest there.
class TextFinder {
 public:
  /// Takes the texts, none of which is empty, each with the number that Found::number returns.
  explicit TextFinder(std::vector<std::pair<std::string, std::size_t>> texts = {});
  struct Found {
    std::size_t at = std::string_view::npos, length = 0, number = 0;
  };
  /// Returns the first place from `from` on at which one of the texts begins; Found::at is npos if
  /// none does.
  Found find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, std::size_t>> texts_;  // sorted
  std::array<bool, 256> begins_{};                          // with this byte
};

struct EncodeOptions {
  /// Adds the tokens that the file's post-processor puts around a text, such as Llama 3's
  /// "<|begin_of_text|>". Hugging Face's tokenizers adds them by default.
  bool add_special_tokens = false;
};

struct BytePairTraining {
  int64_t vocabulary_size = 8192;             // at most; with the bytes and the special tokens
  int64_t min_frequency = 2;                  // of a pair that is merged
  std::vector<std::string> special_tokens{};  // have the numbers from 0 on
  Splitting splitting = Splitting::gpt2;
};

class BytePairTokenizer final : public Tokenizer {
 public:
  /// Reads GPT-2's two files. vocab.json: one object from each token's text to its number, the
  /// numbers 0 to n - 1 once each. merges.txt: one merge per line, two tokens with a space between
  /// them, after an optional first line "#version". In both, printable characters represent bytes
  /// (GPT-2's table: a space is "Ġ"). Throws FormatError, which names the file and the line or
  /// token, for files that are above 64 MiB, are malformed or lack one of the 256 bytes, and for
  /// merges whose tokens the vocabulary does not have.
  BytePairTokenizer(const std::filesystem::path& vocabulary_json,
                    const std::filesystem::path& merges_text);

  /// Reads Hugging Face's tokenizer.json: a byte-level "BPE" with one of the three splittings, with
  /// added and special tokens, "ignore_merges", the normalizer NFC and a template as
  /// post-processor. Throws FormatError, with the place in the file, for everything else that a
  /// file can ask for, and for malformed files as above.
  explicit BytePairTokenizer(const std::filesystem::path& tokenizer_json);

  /// Learns merges from a text: the most frequent pair is merged, and becomes a token, until the
  /// vocabulary is full. If pairs are equally frequent, the pair of the smaller numbers is first
  /// (its left token, then its right one), as in Hugging Face's tokenizers. Special tokens in the
  /// text are text. Throws UsageError for options that contradict each other.
  static BytePairTokenizer train(std::string_view text, const BytePairTraining& options = {});

  /// Writes tokenizer.json, which Hugging Face's tokenizers reads. Throws FormatError if the system
  /// refuses.
  void save(const std::filesystem::path& tokenizer_json) const;

  int64_t vocabulary_size() const override { return int64_t(bytes_of_.size()); }
  /// Encodes as Hugging Face's tokenizers does without add_special_tokens. An added token of
  /// tokenizer.json is found in the text as one token; with GPT-2's two files "<|endoftext|>" is
  /// text. decode(encode(text)) is text, except where the file says otherwise: it can ask for the
  /// normal form C (Qwen2), and for tokens that take the spaces next to them.
  std::vector<int64_t> encode(std::string_view text) const override { return encode(text, {}); }
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options) const;
  /// Returns the bytes of the tokens, which need not be whole characters of UTF-8, with the texts
  /// of special tokens.
  std::string decode(std::span<const int64_t> tokens) const override;

  /// Returns the number of the token with these bytes, such as "<|endoftext|>"; empty for none.
  std::optional<int64_t> token(std::string_view bytes) const;
  const std::vector<AddedToken>& added_tokens() const { return added_; }
  Splitting splitting() const { return splitting_; }

 private:
  class Encoding;
  struct Merge {
    int32_t rank, merged;
  };
  BytePairTokenizer() = default;
  // --- reading: the checks name the file
  void read_vocabulary(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void take_words(const std::filesystem::path& path,
                  const std::vector<std::pair<std::string, uint64_t>>& words);
  void take_merge(const std::filesystem::path& path, const std::string& at, std::string_view left,
                  std::string_view right);
  void take_added(const std::filesystem::path& path);
  /// Builds the tables for encoding; all constructors call it last.
  void finish();

  void merge_word(std::string_view word, std::vector<int64_t>& tokens) const;
  const Merge* merge_of(int32_t left, int32_t right) const;

  std::vector<std::string> bytes_of_;  // of each token
  std::unordered_map<std::string, int32_t>
      token_of_;  // of bytes; not of tokens that are only added
  std::array<int32_t, 256> token_of_byte_{};
  std::unordered_map<uint64_t, Merge> merges_;  // of a pair of tokens, left in the upper half
  Splitting splitting_ = Splitting::gpt2;
  std::size_t words_ = 0;       // tokens of the vocabulary; the others are only added
  bool ignore_merges_ = false;  // a word that is a token stays whole
  bool nfc_ = false;
  std::vector<AddedToken> added_;        // in the order of their numbers
  std::vector<int64_t> before_, after_;  // tokens around a text
  TextFinder in_text_, in_normalized_;   // numbers: places in added_
};

}  // namespace halftone::data
