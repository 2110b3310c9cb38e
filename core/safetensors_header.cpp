// A SAX parser that accepts only the grammar of the format, so nesting is at most three. It rejects
// duplicate keys and limits the number of entries and the lengths of names. This closes the gaps
// that the audit of the official reader left open (Trail of Bits 2023; header bombs of 100,000
// entries).
#include <halftone/core/safetensors_header.h>

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

namespace halftone::safetensors {

namespace {
/// Takes the parser's events and knows at every point which may come next. Any other event throws.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  Header take() && { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string& text) override {
    unexpected("the number " + text.substr(0, 40) + ", no whole number of 64 bits,");
  }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::shape) {
      if (entry().shape.size() == rank_limit)
        fail<UnsupportedError>("load_safetensors", "tensor ", in_quotes(entry().name),
                               " has more than ", rank_limit, " dimensions, in ", path_,
                               ". Reshape it before saving.");
      entry().shape.push_back(value);
    } else if (place_ == Place::offsets && entry().offsets.size() < 2) {
      entry().offsets.push_back(value);
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::dtype) {
      const auto* known = std::ranges::find(file_dtypes, text, &FileDType::name);
      entry().dtype = known == file_dtypes.end() ? nullptr : known;
      entry().dtype_name = text.substr(0, name_limit);
      place_ = Place::entry;
    } else if (place_ == Place::metadata_value) {
      header_.metadata[key_] = text;
      place_ = Place::metadata;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) place_ = Place::file;
    else if (place_ == Place::tensor) place_ = Place::entry;
    else if (place_ == Place::metadata_object) place_ = Place::metadata;
    else unexpected("an object");
    return true;
  }

  bool key(std::string& key) override {
    key_ = key;
    if (place_ == Place::entry) {
      start_field();
      return true;
    }
    if (key.size() > name_limit)
      malformed(path_, "a name of ", key.size(), " bytes is over the limit of ", name_limit, ": ",
                in_quotes(key));
    auto& names = place_ == Place::metadata ? metadata_names_ : names_;
    if (!names.insert(key).second) malformed(path_, "duplicate key ", in_quotes(key));
    if (names_.size() + metadata_names_.size() > entry_limit)
      malformed(path_, "more than ", entry_limit, " entries in the header");
    if (place_ == Place::metadata) {
      place_ = Place::metadata_value;
    } else if (key == metadata_key) {
      place_ = Place::metadata_object;
    } else {
      header_.entries.emplace_back().name = key;
      place_ = Place::tensor;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) {
      const Entry& e = entry();
      require(e.has_dtype, "dtype");
      require(e.has_shape, "shape");
      require(e.has_offsets, "data_offsets");
    }
    place_ = Place::file;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_array) place_ = Place::shape;
    else if (place_ == Place::offsets_array) place_ = Place::offsets;
    else unexpected("an array");
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && entry().offsets.size() != 2)
      malformed(path_, "data_offsets of tensor ", in_quotes(entry().name), " has ",
                entry().offsets.size(), " numbers, not 2");
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t at, const std::string& token,
                   const nlohmann::detail::exception&) override {
    malformed(path_, "the header is not valid JSON at byte ", at, ", near ", in_quotes(token));
  }

 private:
  enum class Place {
    start,
    file,
    tensor,
    entry,
    dtype,
    shape_array,
    shape,
    offsets_array,
    offsets,
    metadata_object,
    metadata,
    metadata_value
  };

  Entry& entry() { return header_.entries.back(); }

  void require(bool present, std::string_view field) {
    if (!present)
      malformed(path_, "tensor ", in_quotes(entry().name), " has no field ", in_quotes(field));
  }

  void start_field() {
    Entry& e = entry();
    bool again = false;
    if (key_ == "dtype") again = std::exchange(e.has_dtype, true), place_ = Place::dtype;
    else if (key_ == "shape") again = std::exchange(e.has_shape, true), place_ = Place::shape_array;
    else if (key_ == "data_offsets")
      again = std::exchange(e.has_offsets, true), place_ = Place::offsets_array;
    else malformed(path_, "unknown field ", in_quotes(key_), " of tensor ", in_quotes(e.name));
    if (again)
      malformed(path_, "duplicate key ", in_quotes(key_), " of tensor ", in_quotes(e.name));
  }

  [[noreturn]] void unexpected(std::string_view what) {
    malformed(path_, what, " is not allowed in the header, after the key ", in_quotes(key_));
  }

  const std::string& path_;
  Header header_;
  Place place_ = Place::start;
  std::string key_;
  std::set<std::string> names_, metadata_names_;
};
}  // namespace

Header parse_header(const std::string& text, const std::string& path) {
  if (text.empty() || text[0] != '{') malformed(path, "the header does not start with '{'");
  // The parser would take a zero byte for the end of the text and never read the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos)
    malformed(path, "the header is not valid JSON at byte ", zero + 1, ", a zero byte");
  HeaderReader reader(path);
  nlohmann::json::sax_parse(text, &reader);
  return std::move(reader).take();
}

}  // namespace halftone::safetensors
