// Byte-pair encoding as GPT-2 does it (Sennrich et al. 2016, arXiv:1508.07909; Radford et al.
// 2019): text is split into words, each word into bytes, and neighbors are merged in the order in
// which the merges were learned. Every string of bytes has an encoding, and decoding restores it.
#pragma once

#include <filesystem>
#include <optional>

#include <halftone/data/text/tokenizer.h>

namespace halftone::data {

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

  int64_t vocabulary_size() const override { return int64_t(bytes_of_.size()); }
  /// Encodes like GPT-2's own encoder with all special tokens disallowed: "<|endoftext|>" in a text
  /// is text.
  std::vector<int64_t> encode(std::string_view text) const override;
  /// Returns the bytes of the tokens, which need not be whole characters of UTF-8.
  std::string decode(std::span<const int64_t> tokens) const override;

  /// Returns the number of the vocabulary's token with this text, such as "<|endoftext|>".
  std::optional<int64_t> token(std::string_view bytes) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  void read_vocabulary(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void merge_word(std::string_view word, std::vector<int64_t>& tokens) const;
  const Merge* merge_of(int32_t left, int32_t right) const;

  std::vector<std::string> bytes_of_;                  // of each token
  std::unordered_map<std::string, int32_t> token_of_;  // of bytes
  std::unordered_map<uint64_t, Merge> merges_;  // of a pair of tokens, left in the upper half
};

}  // namespace halftone::data
