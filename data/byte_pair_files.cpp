// Reads vocab.json with merges.txt, or tokenizer.json, and writes the latter. Their content is
// checked once, here, so that encoding needs no checks: every byte has a token, and every merge
// leads to one.
#include <halftone/data/byte_pairs.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <limits>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/json_value.h>
#include <halftone/core/memory.h>
#include <halftone/data/sets.h>

namespace halftone::data {

namespace {
namespace fs = std::filesystem;
constexpr std::string_view op = "BytePairTokenizer";
constexpr int64_t largest_file = int64_t(64) << 20;
constexpr std::size_t most_tokens = std::size_t(1) << 24;

/// GPT-2's bytes_to_unicode: printable Latin-1 characters represent themselves; the other bytes, in
/// order, are U+0100 and on. The inverse: -1 if a code point represents no byte.
std::array<int, 0x144> byte_of_code_point() {
  std::array<int, 0x144> byte_of{};
  byte_of.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    byte_of[std::size_t(is_printable_byte(byte) ? byte : next++)] = byte;
  return byte_of;
}

/// Returns the bytes that a token of a file represents; nothing if a character represents none.
std::optional<std::string> bytes_of_token(std::string_view written) {
  static const std::array<int, 0x144> byte_of = byte_of_code_point();
  std::string bytes;
  for (std::size_t at = 0; at < written.size();) {
    const CodePoint character = code_point_at(written, at);
    if (character.length == 0 || character.value >= byte_of.size() || byte_of[character.value] < 0)
      return std::nullopt;
    bytes += char(byte_of[character.value]);
    at += character.length;
  }
  return bytes;
}

/// Reads one flat object of strings to numbers. Stops at anything else, so that neither nesting nor
/// size can do harm.
class VocabularyReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::pair<std::string, uint64_t>> tokens;
  std::string problem;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_array(std::size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool end_object() override { return true; }
  bool start_object(std::size_t) override {
    if (inside_) return refuse("an object");
    return inside_ = true;
  }
  bool key(string_t& text) override {
    key_ = std::move(text);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!inside_) return refuse("a number");
    if (tokens.size() == most_tokens) return problem = "it has more than 2^24 tokens", false;
    tokens.emplace_back(std::move(key_), value);
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    problem = "it is not JSON from byte " + std::to_string(at) + " on";
    return false;
  }

 private:
  bool refuse(const std::string& what) {
    problem = inside_
                  ? "token " + in_quotes(key_, 40) + " has " + what + " where its number belongs"
                  : "it is " + what + " and not an object";
    return false;
  }
  bool inside_ = false;
  std::string key_;
};

[[noreturn]] void fail_file(const fs::path& path, const std::string& problem) {
  fail<FormatError>(
      op, "not a usable file: ", path.string(), ": ", problem,
      ". Pass GPT-2's vocab.json and merges.txt, in this order, or one tokenizer.json "
      "of a byte-level BPE.");
}

/// The parser would take a zero byte for the end of the text and never read the rest.
void require_no_zero_byte(const fs::path& path, std::string_view text) {
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail_file(path, "it is not JSON from byte " + std::to_string(zero + 1) + " on, a zero byte");
}
}  // namespace

BytePairTokenizer::BytePairTokenizer(const fs::path& vocabulary_json, const fs::path& merges_text) {
  read_vocabulary(vocabulary_json);
  read_merges(merges_text);
  finish();
}

void BytePairTokenizer::read_vocabulary(const fs::path& path) {
  const std::string text = file_bytes(op, path, largest_file);
  or_no_memory(op, int64_t(text.size()), [&] {
    require_no_zero_byte(path, text);
    VocabularyReader reader;
    nlohmann::json::sax_parse(text, &reader);
    if (!reader.problem.empty()) fail_file(path, reader.problem);
    take_words(path, reader.tokens);
  });
}

void BytePairTokenizer::take_words(const fs::path& path,
                                   const std::vector<std::pair<std::string, uint64_t>>& words) {
  words_ = words.size();
  bytes_of_.resize(words.size());
  std::vector<bool> taken(words.size());
  std::unordered_map<std::string_view, int64_t> added;
  for (const AddedToken& token : added_) added.emplace(token.text, token.token);
  for (const auto& [written, number] : words) {
    if (number >= taken.size() || taken[number])
      fail_file(path, "token " + in_quotes(written, 40) + " has the number " +
                          std::to_string(number) + ", the " + std::to_string(taken.size()) +
                          " tokens need those from 0 to " + std::to_string(taken.size() - 1) +
                          " once each");
    taken[number] = true;
    std::optional<std::string> bytes = bytes_of_token(written);
    if (const auto found = added.find(written); found != added.end()) {
      if (found->second != int64_t(number))
        fail_file(path, "the added token " + in_quotes(written, 40) + " has the number " +
                            std::to_string(found->second) + ", and " + std::to_string(number) +
                            " in the vocabulary");
      bytes_of_[number] = written;  // a text, in which no character represents another byte
      if (bytes != written) continue;
    }
    if (!bytes || bytes->empty())
      fail_file(path, "token " + std::to_string(number) + ", " + in_quotes(written, 40) +
                          ", does not stand for bytes in GPT-2's table");
    if (!token_of_.emplace(*bytes, int32_t(number)).second)
      fail_file(path, "token " + in_quotes(written, 40) + " occurs twice");
    bytes_of_[number] = *std::move(bytes);
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!token_of_.contains(std::string(1, char(byte))))
      fail_file(path, "there is no token for the byte " + std::to_string(byte));
}

void BytePairTokenizer::take_merge(const fs::path& path, const std::string& at,
                                   std::string_view left, std::string_view right) {
  const std::optional<std::string> first = bytes_of_token(left), second = bytes_of_token(right);
  if (!first || !second) fail_file(path, at + "does not stand for bytes in GPT-2's table");
  const auto a = token_of_.find(*first), b = token_of_.find(*second),
             merged = token_of_.find(*first + *second);
  if (a == token_of_.end() || b == token_of_.end() || merged == token_of_.end())
    fail_file(path, at + "merges or makes a token that the vocabulary does not have");
  const uint64_t pair = uint64_t(uint32_t(a->second)) << 32 | uint32_t(b->second);
  if (!merges_.emplace(pair, Merge{int32_t(merges_.size()), merged->second}).second)
    fail_file(path, at + "occurs twice");
}

void BytePairTokenizer::read_merges(const fs::path& path) {
  const std::string text = file_bytes(op, path, largest_file);
  or_no_memory(op, int64_t(text.size()), [&] {
    std::string_view left = text;
    for (int64_t line_number = 1; !left.empty(); ++line_number) {
      std::string_view line = left.substr(0, left.find('\n'));
      left.remove_prefix(std::min(line.size() + 1, left.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;

      const std::string at =
          "line " + std::to_string(line_number) + ", " + in_quotes(line, 40) + ", ";
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
        fail_file(path, at + "is not two tokens with a space between them");
      take_merge(path, at, line.substr(0, space), line.substr(space + 1));
    }
  });
}

// tokenizer.json. The vocabulary and the merges go into lists as they are read; the rest is small,
// and becomes a document.

namespace {

class TokenizerReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::pair<std::string, uint64_t>> words;
  std::vector<std::pair<std::string, std::string>> merges;
  Json rest;
  std::string problem;

  bool null() override { return value(nullptr, "null"); }
  bool boolean(bool x) override { return value(x, "a boolean"); }
  bool number_integer(number_integer_t x) override { return value(x, "a negative number"); }
  bool number_float(number_float_t x, const string_t&) override { return value(x, "a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_unsigned(number_unsigned_t x) override {
    if (part() != Part::words) return value(x, "a number");
    if (words.size() == most_tokens) return problem = "it has more than 2^24 tokens", false;
    words.emplace_back(std::move(open_.back().key), x);
    return true;
  }
  bool string(string_t& text) override {
    if (part() == Part::pair) return pair_.push_back(std::move(text)), true;
    if (part() != Part::merges) return value(std::move(text), "a string");
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      return problem = "merge " + std::to_string(merges.size()) + ", " + in_quotes(text, 40) +
                       ", is not two tokens with a space between them",
             false;
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool key(string_t& text) override {
    open_.back().key = std::move(text);
    return true;
  }
  bool start_object(std::size_t) override {
    if (in_model() && open_.back().key == "vocab") return open(Part::words, nullptr);
    return start(Json::object(), "an object");
  }
  bool start_array(std::size_t) override {
    if (in_model() && open_.back().key == "merges") return open(Part::merges, nullptr);
    if (part() == Part::merges) return pair_.clear(), open(Part::pair, nullptr);
    return start(Json::array(), "an array");
  }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override {
    if (part() == Part::pair) {
      if (pair_.size() != 2)
        return problem = "merge " + std::to_string(merges.size()) + " has " +
                         std::to_string(pair_.size()) + " tokens and not two",
               false;
      merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    }
    return open_.pop_back(), true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    problem = "it is not JSON from byte " + std::to_string(at) + " on";
    return false;
  }

 private:
  enum class Part { rest, words, merges, pair };
  struct Open {
    Part part;
    Json* json;  // of the rest
    std::string key;
  };

  Part part() const { return open_.empty() ? Part::rest : open_.back().part; }
  bool in_model() const {
    return open_.size() == 2 && open_[0].key == "model" && part() == Part::rest;
  }
  bool open(Part part, Json* json) {
    constexpr std::size_t most_levels = 32;
    if (open_.size() == most_levels)
      return problem = "it has more than 32 levels of braces and brackets", false;
    open_.push_back({part, json, {}});
    return true;
  }
  bool start(Json empty, const std::string& what) {
    if (part() != Part::rest) return refuse(what);
    Json* const json = place(std::move(empty));
    return json && open(Part::rest, json);
  }
  bool value(Json x, const std::string& what) {
    return part() == Part::rest ? place(std::move(x)) != nullptr : refuse(what);
  }
  /// Puts a value into the innermost object or array; nullptr, with the problem, if it cannot.
  Json* place(Json x) {
    constexpr std::size_t most_values = std::size_t(1) << 20;
    constexpr std::size_t most_entries = 1000;  // they are searched one by one
    if (++values_ > most_values) return problem = "it has more than 2^20 values", nullptr;
    if (open_.empty()) return rest = std::move(x), &rest;
    Json& to = *open_.back().json;
    if (to.is_array()) return to.push_back(std::move(x)), &to.back();
    const std::string& key = open_.back().key;
    if (to.contains(key))
      return problem = "the entry " + in_quotes(key, 40) + " occurs twice in one object", nullptr;
    if (to.size() == most_entries)
      return problem = "an object has more than 1,000 entries", nullptr;
    return &(to[key] = std::move(x));
  }
  bool refuse(const std::string& what) {
    if (part() == Part::words)
      problem =
          "token " + in_quotes(open_.back().key, 40) + " has " + what + " where its number belongs";
    else
      problem =
          "merge " + std::to_string(merges.size()) + " has " + what + " where its tokens belong";
    return false;
  }

  std::vector<Open> open_{};
  std::vector<std::string> pair_{};
  std::size_t values_ = 0;
};

/// A splitting with its expression, as files spell it.
struct Expression {
  Splitting splitting;
  std::string_view text;
};
constexpr Expression expressions[] = {
    {Splitting::gpt2,
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Splitting::llama3,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Splitting::qwen2,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)"}};

bool is_given(const std::optional<JsonValue>& value) { return value && !value->is_null(); }

/// Returns an entry that must be there.
JsonValue entry_of(const JsonValue& object, std::string_view key) {
  const std::optional<JsonValue> found = object.find(key);
  if (!found) object.refuse("there is no entry \"", key, "\". Add it.");
  return *found;
}

/// Refuses an entry unless it is absent, null, or one of these values.
void require_plain(const JsonValue& object, std::string_view key,
                   std::initializer_list<Json> plain) {
  const std::optional<JsonValue> found = object.find(key);
  if (is_given(found) && std::ranges::find(plain, found->json()) == plain.end())
    found->refuse("halftone does not support this entry: it must be ",
                  plain.size() == 0 ? "null" : plain.begin()->dump(), ". Use another tokenizer.");
}

bool flag_of(const JsonValue& object, std::string_view key, bool otherwise) {
  const std::optional<JsonValue> found = object.find(key);
  return found ? found->boolean() : otherwise;
}

/// Returns the "type" of an object, which must be one of these.
std::string type_of(const JsonValue& object, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) object.refuse("expected an object with a \"type\".");
  const JsonValue type = entry_of(object, "type");
  std::string name = type.text();
  if (std::ranges::find(known, name) != known.end()) return name;
  std::string list;
  for (const std::string_view word : known) list += (list.empty() ? "" : ", ") + std::string(word);
  type.refuse("halftone does not support the type ", in_quotes(name, 40), ", only ", list,
              ". Use another tokenizer.");
}

/// Checks a "ByteLevel"; returns whether it splits.
bool splits(const JsonValue& bytes) {
  require_plain(bytes, "add_prefix_space", {false});
  return flag_of(bytes, "use_regex", true);
}

Splitting splitting_of(const JsonValue& value) {
  if (type_of(value, {"ByteLevel", "Sequence"}) == "ByteLevel") {
    if (!splits(value)) value.refuse("nothing splits the text. Set \"use_regex\".");
    return Splitting::gpt2;
  }
  const JsonValue list = entry_of(value, "pretokenizers");
  const std::vector<JsonValue> steps = list.elements();
  if (steps.size() != 2) list.refuse("expected two steps, Split and ByteLevel.");
  type_of(steps[0], {"Split"}), type_of(steps[1], {"ByteLevel"});
  if (splits(steps[1])) steps[1].refuse("the text is split twice. Set \"use_regex\" to false.");
  require_plain(steps[0], "behavior", {"Isolated"});
  require_plain(steps[0], "invert", {false});
  const JsonValue pattern = entry_of(steps[0], "pattern");
  if (!pattern.is_object()) pattern.refuse("expected an object with a \"Regex\".");
  const JsonValue expression = entry_of(pattern, "Regex");
  const auto found = std::ranges::find(expressions, expression.text(), &Expression::text);
  if (found == std::end(expressions))
    expression.refuse(
        "the expression is none of those of GPT-2, Llama 3 and Qwen2, and halftone "
        "has no others. Use another tokenizer.");
  return found->splitting;
}

std::vector<AddedToken> added_tokens_of(const JsonValue& file) {
  std::vector<AddedToken> tokens;
  const std::optional<JsonValue> list = file.find("added_tokens");
  if (!is_given(list)) return tokens;
  for (const JsonValue& one : list->elements()) {
    if (!one.is_object()) one.refuse("expected an object with \"id\" and \"content\".");
    require_plain(one, "single_word", {false});
    const bool special = flag_of(one, "special", false);
    tokens.push_back({.text = entry_of(one, "content").text(),
                      .token = entry_of(one, "id").integer(0, int64_t(most_tokens)),
                      .special = special,
                      .takes_left = flag_of(one, "lstrip", false),
                      .takes_right = flag_of(one, "rstrip", false),
                      .normalized = flag_of(one, "normalized", !special)});
    if (tokens.back().text.empty()) one.refuse("\"content\" is empty. Leave the token out.");
  }
  return tokens;
}

/// Returns the tokens before and after a text by a "TemplateProcessing".
std::pair<std::vector<int64_t>, std::vector<int64_t>> template_of(const JsonValue& value,
                                                                  int64_t vocabulary_size) {
  std::pair<std::vector<int64_t>, std::vector<int64_t>> around;
  bool text_is_over = false;
  const JsonValue list = entry_of(value, "single");
  for (const JsonValue& piece : list.elements()) {
    if (!piece.is_object()) piece.refuse("expected a Sequence or a SpecialToken.");
    if (piece.find("Sequence")) {
      if (text_is_over) list.refuse("the text occurs twice. Keep it once.");
      text_is_over = true;
      continue;
    }
    const JsonValue special = entry_of(piece, "SpecialToken");
    if (!special.is_object()) special.refuse("expected an object with an \"id\".");
    const std::string name = entry_of(special, "id").text();
    const JsonValue known = entry_of(value, "special_tokens");
    if (!known.is_object() || !known.find(name))
      special.refuse("there is no special token ", in_quotes(name, 40), ". Add it.");
    const JsonValue definition = *known.find(name);
    if (!definition.is_object()) definition.refuse("expected an object with \"ids\".");
    for (const JsonValue& token : entry_of(definition, "ids").elements())
      (text_is_over ? around.second : around.first)
          .push_back(token.integer(0, vocabulary_size - 1));
  }
  if (!text_is_over) list.refuse("the text does not occur. Add a \"Sequence\".");
  return around;
}

/// Returns the "TemplateProcessing" of a post-processor, if it has one.
std::optional<JsonValue> template_in(const JsonValue& value) {
  const std::string type = type_of(value, {"ByteLevel", "TemplateProcessing", "Sequence"});
  if (type == "TemplateProcessing") return value;
  std::optional<JsonValue> found;
  if (type == "ByteLevel") return found;  // it changes no token
  for (const JsonValue& step : entry_of(value, "processors").elements()) {
    if (type_of(step, {"ByteLevel", "TemplateProcessing"}) == "ByteLevel") continue;
    if (found) step.refuse("there are two templates. Keep one.");
    found.emplace(step);
  }
  return found;
}

/// Refuses what halftone does not support, and returns "ignore_merges". Every byte has a token, so
/// that "unk_token", "fuse_unk" and "byte_fallback" have no effect.
bool check_model(const JsonValue& model) {
  if (model.find("type")) type_of(model, {"BPE"});  // GPT-2's own file leaves it out
  require_plain(model, "dropout", {0.0});
  require_plain(model, "continuing_subword_prefix", {""});
  require_plain(model, "end_of_word_suffix", {""});
  return flag_of(model, "ignore_merges", false);
}
}  // namespace

BytePairTokenizer::BytePairTokenizer(const fs::path& path) {
  const std::string text = file_bytes(op, path, largest_file);
  or_no_memory(op, int64_t(text.size()), [&] {
    require_no_zero_byte(path, text);
    TokenizerReader reader;
    nlohmann::json::sax_parse(text, &reader);
    if (!reader.problem.empty()) fail_file(path, reader.problem);
    const JsonValue file(std::string(op), path.string(), reader.rest);
    if (!file.is_object() || !file.find("model") || !file.find("model")->is_object())
      fail_file(path, "it has no \"model\" as tokenizer.json has");
    ignore_merges_ = check_model(*file.find("model"));
    require_plain(file, "truncation", {}), require_plain(file, "padding", {});
    if (const auto normalizer = file.find("normalizer"); is_given(normalizer))
      nfc_ = !type_of(*normalizer, {"NFC"}).empty();
    splitting_ = splitting_of(entry_of(file, "pre_tokenizer"));
    type_of(entry_of(file, "decoder"), {"ByteLevel"});
    added_ = added_tokens_of(file);
    take_words(path, reader.words);
    take_added(path);
    for (std::size_t i = 0; i < reader.merges.size(); ++i) {
      const auto& [left, right] = reader.merges[i];
      std::string merge = left;
      merge.append(" ").append(right);
      take_merge(path, "merge " + std::to_string(i) + ", " + in_quotes(merge, 40) + ", ", left,
                 right);
    }
    if (const auto after = file.find("post_processor"); is_given(after))
      if (const auto found = template_in(*after))
        std::tie(before_, after_) = template_of(*found, vocabulary_size());
    finish();
  });
}

void BytePairTokenizer::take_added(const fs::path& path) {
  std::ranges::sort(added_, {}, &AddedToken::token);
  std::set<std::string_view> known;
  for (const AddedToken& added : added_) {
    const std::string token = "the added token " + in_quotes(added.text, 40);
    if (!known.insert(added.text).second) fail_file(path, token + " occurs twice");
    if (added.token == vocabulary_size()) bytes_of_.push_back(added.text);
    else if (added.token > vocabulary_size() || bytes_of_[std::size_t(added.token)] != added.text)
      fail_file(path, token + " has the number " + std::to_string(added.token) +
                          ", expected its number in the vocabulary, or the next one, " +
                          std::to_string(vocabulary_size()));
  }
}

// Writing.

namespace {
/// Returns the text that represents bytes in files.
std::string written_bytes(std::string_view bytes) {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> result;
    const auto byte_of = byte_of_code_point();
    for (std::size_t value = 0; value < byte_of.size(); ++value)
      if (byte_of[value] >= 0) append_utf8(result[std::size_t(byte_of[value])], char32_t(value));
    return result;
  }();
  std::string text;
  for (const char byte : bytes) text += characters[static_cast<unsigned char>(byte)];
  return text;
}

Json bytes_step(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json pre_tokenizer_of(Splitting splitting) {
  if (splitting == Splitting::gpt2) return bytes_step(true);
  const std::string text(std::ranges::find(expressions, splitting, &Expression::splitting)->text);
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({Json{{"type", "Split"},
                                              {"pattern", {{"Regex", text}}},
                                              {"behavior", "Isolated"},
                                              {"invert", false}},
                                         bytes_step(false)})}};
}

/// Returns the "TemplateProcessing" for the tokens around a text; texts of pairs are each in
/// between.
template <class Name>
Json post_processor_of(std::span<const int64_t> before, std::span<const int64_t> after,
                       const Name& name_of) {
  if (before.empty() && after.empty()) return bytes_step(true);
  Json special = Json::object();
  const auto add = [&](Json& list, std::span<const int64_t> tokens, int type) {
    for (const int64_t token : tokens) {
      const std::string name = name_of(std::size_t(token));
      Json piece, definition{{"id", name}};
      piece["SpecialToken"] = Json{{"id", name}, {"type_id", type}};
      list.push_back(std::move(piece));
      definition["ids"] = Json::array({token}), definition["tokens"] = Json::array({name});
      special[name] = std::move(definition);
    }
  };
  const auto add_text = [&](Json& list, const char* text, int type) {
    add(list, before, type);
    Json piece;
    piece["Sequence"] = Json{{"id", text}, {"type_id", type}};
    list.push_back(std::move(piece));
    add(list, after, type);
  };
  Json processor{{"type", "TemplateProcessing"}};
  add_text(processor["single"], "A", 0);
  add_text(processor["pair"], "A", 0), add_text(processor["pair"], "B", 1);
  processor["special_tokens"] = std::move(special);
  return processor;
}

Json json_of(const std::vector<AddedToken>& tokens) {
  Json list = Json::array();
  for (const AddedToken& token : tokens)
    list.push_back({{"id", token.token},
                    {"content", token.text},
                    {"single_word", false},
                    {"lstrip", token.takes_left},
                    {"rstrip", token.takes_right},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  return list;
}
}  // namespace

void BytePairTokenizer::save(const fs::path& path) const {
  std::vector<const AddedToken*> added(bytes_of_.size());
  for (const AddedToken& token : added_) added[std::size_t(token.token)] = &token;
  const auto name_of = [&](std::size_t token) {
    return added[token] ? added[token]->text : written_bytes(bytes_of_[token]);
  };
  const auto written = [&](std::size_t token) { return Json(name_of(token)).dump(); };
  std::vector<std::pair<uint64_t, Merge>> merges(merges_.begin(), merges_.end());
  std::ranges::sort(merges, {}, [](const auto& one) { return one.second.rank; });

  Json parts{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  parts["added_tokens"] = json_of(added_);
  parts["normalizer"] = nullptr;
  if (nfc_) parts["normalizer"] = Json{{"type", "NFC"}};
  parts["pre_tokenizer"] = pre_tokenizer_of(splitting_);
  parts["post_processor"] = post_processor_of(before_, after_, name_of);
  parts["decoder"] = bytes_step(true);
  std::string text = parts.dump(1);
  text.resize(text.rfind('\n'));
  text +=
      ",\n \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
      "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
      "\"byte_fallback\": false, \"ignore_merges\": ";
  text += ignore_merges_ ? "true" : "false";
  text += ",\n  \"vocab\": {";
  for (std::size_t i = 0; i < words_; ++i)
    text += (i == 0 ? "\n   " : ",\n   ") + written(i) + ": " + std::to_string(i);
  text += "},\n  \"merges\": [";
  for (const auto& [pair, merge] : merges)
    text += (merge.rank == 0 ? "\n   [" : ",\n   [") + written(std::size_t(pair >> 32)) + ", " +
            written(std::size_t(pair & 0xffffffffu)) + ']';
  files::replace(op, path, text + "]}\n}\n");
}

}  // namespace halftone::data
