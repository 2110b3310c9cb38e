// Freeing graphs without recursion, so that their depth is not limited by the stack.
#include <halftone/autograd/node.h>

#include <atomic>

namespace halftone {

uint64_t next_node_order() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

namespace {
/// Moves out of `edges` the creators that nothing but this edge keeps alive.
void take_creators(std::vector<Edge>& edges, std::vector<std::shared_ptr<Node>>& into) {
  for (Edge& edge : edges)
    if (edge.input && edge.input->creator && edge.input.use_count() == 1)
      into.push_back(std::move(edge.input->creator));
}
}  // namespace

Node::~Node() {
  std::vector<std::shared_ptr<Node>> doomed;
  take_creators(edges, doomed);
  while (!doomed.empty()) {
    const std::shared_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
    if (node.use_count() == 1) take_creators(node->edges, doomed);
  }
}

}  // namespace halftone
