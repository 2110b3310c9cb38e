// A record that a file stores. One description of its entries is the reader of files from
// anywhere, the writer, the list of names for "did you mean", and the test that an entry has an
// effect:
//
//   void describe(Record& r, Clip& clip) {
//     r.number("rms", clip.rms);
//     r.number("quantile", clip.quantile);
//   }
//   Clip clip = Record::read(json, "a clip", Clip{});
//   Json json = Record::write(clip);
//
// Reading runs the description twice: for the names, and for the values, in its order. Entries that
// are absent leave their values as they are. Not installed: it needs a JSON library.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <halftone/core/json_value.h>
#include <halftone/core/words.h>

namespace halftone {

namespace detail {
template <class T> struct Content { using Type = T; };
template <class T> struct Content<std::optional<T>> { using Type = T; };
}  // namespace detail

/// A value and its word in files.
template <class T> struct Word {
  std::string_view word;
  T value;
};

class Record {
 public:
  /// Whether a writer writes an entry. Without a value, it does so unless the entry has no effect
  /// (see when() and of()). It never writes an empty std::optional.
  using Kept = std::optional<bool>;
  /// The type of an entry's value: T for std::optional<T>.
  template <class X> using Content = typename detail::Content<X>::Type;

  /// Returns `record` with the entries of a JSON object. what: "a clip", for errors. Throws
  /// FormatError, with the place, for unknown names and for what the description refuses.
  template <class T, class... Context>
  static T read(const JsonValue& from, std::string_view what, T record, Context&&... context) {
    T scratch = record;
    from.only(what, names([&](Record& r) { describe(r, scratch, context...); }));
    Record reader(&from);
    describe(reader, record, context...);
    return record;
  }
  /// Does the same, but skips unknown names: for a record to which later programs add entries.
  template <class T> static T read_known(const JsonValue& from, T record) {
    Record reader(&from);
    reader.others_ = true;
    describe(reader, record);
    return record;
  }
  template <class T, class... Context> static Json write(T record, Context&&... context) {
    Record writer(nullptr, false);
    describe(writer, record, context...);
    return std::move(writer.to_);
  }
  /// Returns the names of all entries of a description.
  template <class Body> static std::vector<std::string_view> names(const Body& body) {
    Record list(nullptr, true);
    body(list);
    return std::move(list.names_);
  }

  bool reads() const { return from_ != nullptr; }
  /// Returns the entry of that name in the file that is read.
  std::optional<JsonValue> given(std::string_view name) const {
    return from_ ? from_->find(name) : std::nullopt;
  }
  /// The file's object, while this reads.
  const JsonValue& whole() const { return *from_; }

  // --- entries

  void flag(std::string_view name, auto& x, Kept kept = {}) {
    entry(name, x, kept, [](const JsonValue& v) { return v.boolean(); });
  }
  void integer(std::string_view name, auto& x, int64_t least, int64_t most, Kept kept = {}) {
    using I = Content<std::remove_reference_t<decltype(x)>>;
    entry(name, x, kept, [=](const JsonValue& v) { return I(v.integer(least, most)); });
  }
  void number(std::string_view name, auto& x, Kept kept = {}) {
    using F = Content<std::remove_reference_t<decltype(x)>>;
    entry(name, x, kept, [](const JsonValue& v) { return F(v.number()); });
  }
  void text(std::string_view name, std::string& x, Kept kept = {}) {
    entry(name, x, kept, [](const JsonValue& v) { return v.text(); });
  }
  /// A value of an enumeration that has a table of words.
  template <class X>
  requires HasWords<Content<X>>
  void word(std::string_view name, X& x, Kept kept = {}) {
    using E = Content<X>;
    entry(
        name, x, kept, [](const JsonValue& v) { return E(v.word(words_of<E>)); },
        [](const E& value) { return Json(halftone::name(value)); });
  }
  /// One of these values.
  template <class X>
  void word(std::string_view name, X& x, std::initializer_list<Word<Content<X>>> choices,
            Kept kept = {}) {
    word(name, x, std::span(choices.begin(), choices.size()), kept);
  }
  template <class X>
  void word(std::string_view name, X& x, std::span<const Word<Content<X>>> choices,
            Kept kept = {}) {
    using E = Content<X>;
    entry(
        name, x, kept,
        [&](const JsonValue& v) {
          std::vector<std::string_view> words;
          for (const Word<E>& choice : choices) words.push_back(choice.word);
          return std::data(choices)[v.word(words)].value;
        },
        [&](const E& value) {
          for (const Word<E>& choice : choices)
            if (choice.value == value) return Json(choice.word);
          return Json();
        });
  }
  /// An object, described by describe(Record&, T&, context...). what: "a clip".
  template <class X, class... Context>
  void part(std::string_view name, std::string_view what, X& x, Kept kept, Context&&... context) {
    using T = Content<X>;
    entry(
        name, x, kept, [&](const JsonValue& v) { return read(v, what, T{}, context...); },
        [&](const T& value) { return write(value, context...); });
  }
  /// An object whose entries `body` describes: a group of this record's own values.
  template <class Body>
  void group(std::string_view name, std::string_view what, const Body& body, Kept kept = {}) {
    if (lists_) return names_.push_back(name);
    if (const auto found = given(name)) {
      if (!others_) found->only(what, names(body));
      else if (!found->is_object()) found->refuse("expected an object.");
      Record reader(&*found);
      reader.others_ = others_;
      body(reader);
    } else if (!from_ && kept.value_or(active_)) {
      Record writer(nullptr, false);
      body(writer);
      to_[std::string(name)] = std::move(writer.to_);
    }
  }
  /// Any other value: `in` makes it from JSON, and `out` makes JSON from it.
  template <class X, class In, class Out>
  void entry(std::string_view name, X& x, Kept kept, const In& in, const Out& out) {
    if (lists_) return names_.push_back(name);
    if (from_) {
      const auto found = given(name);
      if (!found) return;
      if (!other_.empty()) found->refuse("this is of ", other_, '.');
      X value = in(*found);
      if (!active_ && !(value == x))
        found->refuse("this has no effect: it is of ", whose_, ". Leave it out.");
      x = std::move(value);
    } else if (kept.value_or(active_) && is_present(x)) {
      to_[std::string(name)] = out(content_of(x));
    }
  }
  template <class X, class In> void entry(std::string_view name, X& x, Kept kept, const In& in) {
    entry(name, x, kept, in, [](const Content<X>& value) { return Json(value); });
  }
  /// An entry that readers accept and nothing uses, such as a remark.
  void remark(std::string_view name) {
    if (lists_) names_.push_back(name);
  }

  // --- groups

  /// Describes entries that have an effect only if `active`: a reader accepts only their defaults.
  /// whose: "scales from history", for errors.
  void when(bool active, std::string_view whose, const std::function<void()>& body) {
    const bool before = active_;
    const std::string_view whose_before = whose_;
    if (!active) whose_ = whose;
    active_ = active_ && active;
    body();
    active_ = before, whose_ = whose_before;
  }
  /// Describes entries that only one kind of the record has: unless `active`, a reader refuses
  /// them. kind: the name of this kind, for errors.
  void of(bool active, std::string_view kind, const std::function<void()>& body) {
    const bool before = active_;
    const std::string_view other_before = other_;
    if (!active) other_ = kind;
    active_ = active_ && active;
    body();
    active_ = before, other_ = other_before;
  }
  /// Throws FormatError with `message` if the object that is read has no such entry.
  void require(std::string_view name, std::string_view message) const {
    if (from_ && !from_->find(name)) from_->refuse(message);
  }

 private:
  explicit Record(const JsonValue* from, bool lists = false) : from_(from), lists_(lists) {}

  template <class T> static bool is_present(const T&) { return true; }
  template <class T> static bool is_present(const std::optional<T>& x) { return x.has_value(); }
  template <class T> static const T& content_of(const T& x) { return x; }
  template <class T> static const T& content_of(const std::optional<T>& x) { return *x; }

  const JsonValue* from_;  // null: writes, or lists names
  bool lists_;
  bool active_ = true, others_ = false;
  std::string_view whose_{}, other_{};
  Json to_ = Json::object();
  std::vector<std::string_view> names_{};
};

}  // namespace halftone
