// Frees graphs without recursion, so that their depth is not limited by the stack.
#include <halftone/autograd/node.h>

#include <atomic>
#include <iterator>
#include <utility>

namespace halftone {

uint64_t next_node_order() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

// One work list of edges. An edge that is not its input's last holder only lets go. The last one,
// often in the list as well (x + x, or a residual connection), takes over the creator.
Node::~Node() {
  std::vector<Edge> doomed = std::move(edges);
  while (!doomed.empty()) {
    const std::shared_ptr<AutogradMeta> input = std::move(doomed.back().input);
    doomed.pop_back();
    if (!input || input.use_count() != 1) continue;
    const std::shared_ptr<Node> node = std::move(input->creator);
    if (!node || node.use_count() != 1) continue;
    doomed.insert(doomed.end(), std::make_move_iterator(node->edges.begin()),
                  std::make_move_iterator(node->edges.end()));
    node->edges.clear();
  }
}

}  // namespace halftone
