// Checks whether a page is well-formed XML, and lists its elements and attributes: a parser of
// minimal size.
#pragma once

#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::test {

struct Page {
  std::string mistake{};  // the first, with the text around it; "" if there is none
  std::multiset<std::string> ids{}, tags{};
  std::vector<std::string> links{};  // of href and src
};

class PageReader {
 public:
  explicit PageReader(std::string_view text) : rest_(text) {}

  Page read() {
    if (rest_.starts_with("<!DOCTYPE html>")) rest_.remove_prefix(15);
    while (!rest_.empty() && page_.mistake.empty()) {
      if (rest_.front() == '<') tag();
      else if (rest_.front() == '&') entity();
      else character();
    }
    if (page_.mistake.empty() && !open_.empty()) wrong("not closed: " + open_.back());
    return page_;
  }

 private:
  void wrong(const std::string& what) {
    page_.mistake = what + " before: " + std::string(rest_.substr(0, 60));
  }

  /// Bytes below a space other than line ends and tabs are not allowed in XML.
  void character() {
    const auto byte = static_cast<unsigned char>(rest_.front());
    if (byte < ' ' && byte != '\n' && byte != '\t') return wrong("a control character");
    if (open_.empty() && !std::isspace(byte)) return wrong("text outside of all elements");
    rest_.remove_prefix(1);
  }

  void entity() {
    for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"})
      if (rest_.starts_with(known)) return rest_.remove_prefix(known.size());
    wrong("an unknown entity");
  }

  std::string word() {
    std::size_t end = 0;
    while (end < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[end])) ||
                                  rest_[end] == '-' || rest_[end] == ':'))
      ++end;
    const std::string result(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return result;
  }

  void tag() {
    rest_.remove_prefix(1);
    if (rest_.starts_with('/')) {
      rest_.remove_prefix(1);
      const std::string name = word();
      if (open_.empty() || open_.back() != name || !rest_.starts_with('>'))
        return wrong("closed, but not the last that is open: " + name);
      open_.pop_back();
      return rest_.remove_prefix(1);
    }
    const std::string name = word();
    if (name.empty()) return wrong("a tag without a name");
    page_.tags.insert(name);
    attributes();
    if (!page_.mistake.empty()) return;
    if (rest_.starts_with("/>")) return rest_.remove_prefix(2);
    if (!rest_.starts_with('>')) return wrong("a tag without an end");
    rest_.remove_prefix(1);
    open_.push_back(name);
  }

  void attributes() {
    std::set<std::string> seen;
    while (rest_.starts_with(' ')) {
      rest_.remove_prefix(1);
      const std::string name = word();
      if (name.empty() || !rest_.starts_with("=\"")) return wrong("an attribute without a value");
      if (!seen.insert(name).second) return wrong("an attribute twice: " + name);
      rest_.remove_prefix(2);
      const std::string_view before = rest_;
      while (!rest_.empty() && rest_.front() != '"' && page_.mistake.empty()) {
        if (rest_.front() == '<') return wrong("< in an attribute");
        if (rest_.front() == '&') entity();
        else rest_.remove_prefix(1);
      }
      const std::string value(before.substr(0, before.size() - rest_.size()));
      if (name == "id") page_.ids.insert(value);
      if (name == "href" || name == "src") page_.links.push_back(value);
      if (rest_.empty()) return wrong("an attribute without an end");
      rest_.remove_prefix(1);
    }
  }

  std::string_view rest_;
  std::vector<std::string> open_{};
  Page page_{};
};

}  // namespace halftone::test
