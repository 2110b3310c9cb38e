// Contracts the function's output with a fixed random-looking tensor v. The gradient of that scalar
// by each input element is then one number: analytic on one side, a central difference on the
// other.
#include <halftone/autograd/inspect.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>

namespace halftone {

namespace {
std::vector<double> contraction_weights(int64_t count) {
  std::vector<double> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.5 + 0.5 * std::sin(1.0 + 2.3 * double(i));
  return v;
}

double contracted(const Tensor& y) {
  const std::vector<double> values = y.to_vector<double>(), v = contraction_weights(y.numel());
  double total = 0;
  for (std::size_t i = 0; i < v.size(); ++i) total += values[i] * v[i];
  return total;
}
}  // namespace

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) {
    if (x.requires_grad() && x.dtype() != f64)
      fail<DTypeError>("gradcheck", "an input that requires a gradient is ", x.dtype(),
                       ". Cast it to f64.");
    leaves.push_back(x.defined() ? x.detach() : x);
    if (x.requires_grad()) leaves.back().set_requires_grad();
  }
  const Tensor y = function(leaves);
  y.backward(from_vector(contraction_weights(y.numel()), y.shape(), f64, y.device()));

  const NoGrad no_grad;
  GradcheckResult result;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].requires_grad()) continue;
    const Tensor gradient = leaves[k].grad();
    const auto count = std::size_t(inputs[k].numel());
    const auto analytic =
        gradient.defined() ? gradient.to_vector<double>() : std::vector<double>(count, 0.0);
    std::vector<double> values = inputs[k].to_vector<double>();
    const auto probe = [&](std::size_t element, double value) {
      const double before = std::exchange(values[element], value);
      std::vector<Tensor> moved = leaves;
      moved[k] = from_vector(values, inputs[k].shape(), f64, inputs[k].device());
      values[element] = before;
      return contracted(function(moved));
    };
    for (std::size_t i = 0; i < count; ++i) {
      const double numeric =
          (probe(i, values[i] + options.step) - probe(i, values[i] - options.step)) /
          (2 * options.step);
      const double error = std::abs(numeric - analytic[i]);
      result.worst_error = std::max(result.worst_error, error);
      const double bound =
          options.absolute_tolerance + options.relative_tolerance * std::abs(numeric);
      if (error <= bound || !result.passed) continue;
      PlainText text;
      text << "input " << k << ", element " << i << ": analytic " << analytic[i] << ", numeric "
           << numeric;
      result.passed = false, result.message = text.str();
    }
  }
  return result;
}

// Collects the nodes without recursion, numbers them in order of computation, and writes them. A
// cast that its gradient bypasses (edge_of() in autograd/apply.cpp) has no node: it is an f32 edge
// to an operation that computes in a shorter dtype, and is drawn dashed.

namespace {

/// Returns the bytes of a well-formed UTF-8 character at the start of a text; 0 if there is none.
std::size_t character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? unsigned(uint8_t(text[i])) : 0; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const unsigned second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return overlong || beyond ? 0 : size;
}

/// Returns users' text for a quoted string: nothing in it ends the string, is an escape or entity.
std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t size = character_at(text);
    const char c = text[0];
    if (size > 1) result += text.substr(0, size);
    else if (size == 0 || uint8_t(c) < 0x20 || c == 0x7f) result += '?';
    else if (c == '&') result += "&amp;";
    else if (c == '"' || c == '\\') (result += '\\') += c;
    else result += c;
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

/// Colors light enough for black text. The most frequent pairs, f32 with bf16 and f16, are distinct
/// also for color-blind readers.
const char* color_of(DType dtype) {
  switch (dtype) {
    case f64: return "#d0d0d0";
    case f32: return "#cfe3f7";
    case f16: return "#f7c9dd";
    case bf16: return "#fcd9a0";
    default: return is_floating(dtype) ? "#d8caf0" : "#ffffff";  // the formats of one byte
  }
}

constexpr const char* hexagon = "shape=hexagon, margin=\"0,0.02\", ";

template <class... Parts> std::string text_of(const Parts&... parts) {
  PlainText text;
  (text << ... << parts);
  return text.str();
}

class Drawing {
 public:
  Drawing(const Tensor& loss, const DotOptions& options) : options_(options) {
    for (const OperationReader& reader : catalogue_readers()) readers_.emplace(reader.info, reader);
    for (const OperationReader& reader : options.operations) readers_[reader.info] = reader;
    for (const auto& [name, x] : options.names)
      if (x.defined()) {
        if (x.meta()) leaf_names_.emplace(x.meta().get(), &name);
        storage_names_.emplace(x.storage().get(), &name);
      }
    collect(loss.meta()->creator.get());
    for (const Node* node : nodes_) numbers_.emplace(node, numbers_.size() + 1);
    for (const Node* node : nodes_) draw(*node);
    body_ << "  result [shape=plaintext, style=\"\", label=\"the result\"];\n  "
          << text_of('n', numbers_.at(loss.meta()->creator.get())) << " -> result;\n";
  }

  void write(std::ostream& out) const {
    out << "digraph step {\n"
           "  graph [fontname=\"Helvetica\", fontsize=11, labelloc=t, nodesep=0.2, ranksep=0.3,\n"
           "         label=\""
        << heading() << "\"];\n"
        << "  node [fontname=\"Helvetica\", fontsize=10, shape=box, height=0.3,\n"
           "        margin=\"0.1,0.05\"];\n"
           "  edge [fontname=\"Helvetica\", fontsize=9, arrowsize=0.6];\n"
        << legend() << body_.str() << "}\n";
  }

 private:
  void collect(const Node* root) {
    std::unordered_set<const Node*> seen{root};
    std::vector<const Node*> waiting{root};
    while (!waiting.empty()) {
      const Node* const node = waiting.back();
      waiting.pop_back();
      nodes_.push_back(node);
      for (const Edge& edge : node->edges)
        if (edge.input && edge.input->creator && seen.insert(edge.input->creator.get()).second)
          waiting.push_back(edge.input->creator.get());
    }
    std::ranges::sort(nodes_, {}, &Node::order);
  }

  const OperationReader* reader_for(const Node& node) const {
    const auto found = readers_.find(node.info);
    return found == readers_.end() ? nullptr : &found->second;
  }

  void draw(const Node& node) {
    const OperationReader* const reader = reader_for(node);
    const std::string id = text_of('n', numbers_.at(&node));
    std::vector<std::string> sources;
    for (std::size_t i = 0; i < node.edges.size(); ++i)
      if (node.edges[i].input)
        sources.push_back(source_of(node.edges[i], reader && reader->wide(i), node.output_dtype));
    const bool is_cast = node.info == &Cast::info;
    std::string label = text_of(numbers_.at(&node), ". ", escaped(node.info->name));
    if (const std::string place = options_.place_of ? options_.place_of(node) : ""; !place.empty())
      label += "\\n" + escaped(place);
    if (is_cast && node.edges[0].input)
      label += text_of("\\n", node.edges[0].dtype, " to ", node.output_dtype);
    else label += text_of("\\n", node.output_dtype, ' ', node.output_shape);
    if (node.tap) label += "\\ntapped";
    if (!node.hooks.empty()) label += "\\nhooks on its gradient: " + text_of(node.hooks.size());
    label += node.released() ? "\\nfreed by backward()" : kept_by(node, reader);
    shapes_.insert(is_cast ? "cast" : "operation");
    if (node.tap) shapes_.insert("tapped");
    body_ << "  " << id << " [" << (is_cast ? hexagon : "") << (node.tap ? "peripheries=2, " : "")
          << style(is_cast ? "filled" : "filled,rounded") << fill(node.output_dtype) << "label=\""
          << label << "\"];\n";
    for (const std::string& source : sources) body_ << "  " << source << " -> " << id << ";\n";
  }

  static std::string style(std::string_view words) { return text_of("style=\"", words, "\", "); }
  std::string fill(DType dtype) {
    dtypes_.insert(dtype);
    return text_of("fillcolor=\"", color_of(dtype), "\", ");
  }

  /// Returns the name of an edge's source, and draws it first if it is new: a leaf, or a cast
  /// without a node.
  std::string source_of(const Edge& edge, bool wide, DType computes_in) {
    const Node* const creator = edge.input->creator.get();
    const std::string from = creator ? text_of('n', numbers_.at(creator)) : leaf(edge);
    if (!wide || edge.dtype != f32 || size_of(computes_in) >= size_of(f32)) return from;
    const auto [place, is_new] = passed_casts_.try_emplace({from, computes_in}, "");
    if (is_new) {
      place->second = text_of('c', passed_casts_.size());
      shapes_.insert("passed");
      body_ << "  " << place->second << " [" << hexagon << style("filled,dashed")
            << fill(computes_in) << "label=\"cast\\n"
            << text_of(edge.dtype, " to ", computes_in) << "\"];\n  " << from << " -> "
            << place->second << ";\n";
    }
    return place->second;
  }

  std::string leaf(const Edge& edge) {
    const auto [place, is_new] = leaves_.try_emplace(edge.input.get(), "");
    if (is_new) {
      place->second = text_of('p', leaves_.size());
      const auto name = leaf_names_.find(edge.input.get());
      shapes_.insert("leaf");
      body_ << "  " << place->second << " [" << style("filled,bold") << fill(edge.dtype)
            << "label=\"" << (name == leaf_names_.end() ? "leaf" : escaped(*name->second))
            << text_of("\\n", edge.dtype, ' ', edge.shape) << "\"];\n";
    }
    return place->second;
  }

  /// Returns one line per tensor. A storage counts at the first node that keeps it.
  std::string kept_by(const Node& node, const OperationReader* reader) {
    std::vector<Tensor> list;
    if (!reader || !reader->saved(node, list)) {
      ++unknown_;
      return "\\nkeeps: not known";
    }
    std::string lines;
    for (const Tensor& x : list) {
      const Storage* const storage = x.storage().get();
      const bool extra =
          storage->use() != MemoryUse::parameter && storage->use() != MemoryUse::input;
      const auto name = storage_names_.find(storage);
      lines += text_of("\\nkeeps ", x.dtype(), ' ', x.shape(), ": ");
      const auto [first, is_new] = kept_.try_emplace(storage, numbers_.at(&node));
      if (name != storage_names_.end()) lines += escaped(*name->second);
      else if (!extra)
        lines += text_of("a", storage->use() == MemoryUse::input ? "n " : " ",
                         halftone::name(storage->use()));
      else if (!is_new) lines += text_of("that of ", first->second);
      else lines += text_of(HumanBytes{storage->bytes()});
      if (extra && is_new && name == storage_names_.end())
        bytes_[storage->use()] += storage->bytes();
    }
    return lines;
  }

  std::string heading() const {
    int64_t total = 0;
    std::string parts;
    for (const auto& [use, bytes] : bytes_) {
      total += bytes;
      parts += text_of(parts.empty() ? "" : ", ", halftone::name(use), ' ', HumanBytes{bytes});
    }
    std::string line =
        text_of(nodes_.size(), nodes_.size() == 1 ? " operation" : " operations",
                " in the order of computation\\nkept for backward: ", HumanBytes{total});
    if (bytes_.size() > 1) line += " (" + parts + ')';
    if (unknown_ > 0)
      line +=
          text_of(", without what ", unknown_,
                  unknown_ == 1 ? " operation keeps" : " operations keep", " that no reader knows");
    return line;
  }

  /// Returns a legend with only the elements that this picture has.
  std::string legend() const {
    PlainText text;
    text << "  legend [shape=plain, label=<<TABLE BORDER=\"0\" CELLBORDER=\"1\" CELLSPACING=\"2\" "
            "CELLPADDING=\"3\">\n    <TR>";
    for (const DType dtype : dtypes_)
      text << "<TD BGCOLOR=\"" << color_of(dtype) << "\">" << dtype << "</TD>";
    text << "</TR>\n";
    const auto line = [&](const char* shape, const char* words) {
      if (shapes_.contains(shape))
        text << "    <TR><TD BORDER=\"0\" ALIGN=\"LEFT\" COLSPAN=\"" << dtypes_.size() << "\">"
             << words << "</TD></TR>\n";
    };
    line("leaf", "bold box: a leaf, such as a parameter");
    line("operation", "round box: an operation, its result");
    line("cast", "hexagon: a cast");
    line("passed", "dashed: a cast that the f32 gradient passes by");
    line("tapped", "double border: a tap changes or watches numbers");
    line("operation", "not drawn: inputs that want no gradient");
    text << "    </TABLE>>];\n";
    return text.str();
  }

  const DotOptions& options_;
  std::unordered_map<const OpInfo*, OperationReader> readers_;
  std::unordered_map<const AutogradMeta*, const std::string*> leaf_names_;
  std::unordered_map<const Storage*, const std::string*> storage_names_;
  std::vector<const Node*> nodes_;
  std::unordered_map<const Node*, std::size_t> numbers_;
  std::unordered_map<const AutogradMeta*, std::string> leaves_;
  std::map<std::pair<std::string, DType>, std::string> passed_casts_;
  std::unordered_map<const Storage*, std::size_t> kept_;  // by the number of the node
  std::map<MemoryUse, int64_t> bytes_;
  std::set<DType> dtypes_;
  std::set<std::string_view> shapes_;
  int unknown_ = 0;  // nodes of operations that no reader knows
  PlainText body_;
};

void require_graph(const Tensor& loss) {
  if (!loss.defined())
    fail<UsageError>("write_dot",
                     "the tensor is undefined. Pass a computed tensor, such as a loss.");
  if (loss.is_leaf())
    fail<UsageError>("write_dot", "no recorded operation made this tensor, ", described(loss),
                     ". Pass one that was computed, outside of NoGrad, from a leaf that requires a "
                     "gradient.");
  const Node& node = *loss.meta()->creator;
  if (node.released())
    fail<UsageError>("write_dot", "the graph of ", node.info->name,
                     " was freed by an earlier backward(). Draw it before.");
}

}  // namespace

void write_dot(const Tensor& loss, std::ostream& out, const DotOptions& options) {
  require_graph(loss);
  PlainText text;
  Drawing(loss, options).write(text);
  out << text.str();
}

void write_dot(const Tensor& loss, const std::filesystem::path& path, const DotOptions& options) {
  PlainText text;
  write_dot(loss, text, options);
  files::replace("write_dot", path, text.str(), files::Durable::no);
}

}  // namespace halftone
