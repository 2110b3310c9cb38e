// Gradients of few weights from many pixels, as in first layers, whose images have one or three
// channels. A product with the weights' gradient as its result (conv_products.cpp) is a thin matrix
// there, with little work to share among threads.
#pragma once

#include <type_traits>

#include <halftone/backends/cpu/conv_windows.h>
#include <halftone/backends/cpu/product_pieces.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/factory.h>

namespace halftone::cpu {

inline constexpr int64_t few_weights = 1 << 14;  // their sums stay in the second-level cache

/// Computes dw^T [T C, O] = windows of x^T dy, for few weights and many pixels. dy is read in
/// place. A task takes a number of pixels that depends only on sizes.
template <class Element> class FewWeights {
 public:
  FewWeights(const Windows<Element>& windows, const Element* dy, int64_t out)
      : windows_(windows),
        dy_{dy, is_float ? simd::Element::f32 : simd::Element::bf16, out, 1},
        out_(out),
        share_(even_piece(windows.pixels(), std::max<int64_t>(most_depth, windows.pixels() / 32),
                          16)) {}

  void add_up(float* to) const {
    const int64_t size = windows_.depth() * out_,
                  tasks = reference::pieces_of(windows_.pixels(), share_);
    Workspace<float> sums(tasks * size);
    parallel_tasks(tasks, [&](int64_t task) {
      const int64_t begin = task * share_, end = std::min(begin + share_, windows_.pixels());
      multiply(begin, end, sums.data() + task * size);
    });
    std::copy_n(sums.data(), size, to);
    for (int64_t task = 1; task < tasks; ++task)
      simd_kernels().accumulate(sums.data() + task * size, to, size);
  }

 private:
  static constexpr bool is_float = std::is_same_v<Element, float>;
  static constexpr int64_t most_depth = 512;  // pixels packed at a time

  void multiply(int64_t begin, int64_t end, float* sums) const {
    const simd::Kernels& k = simd_kernels();
    const int64_t width = k.tile_columns, entries = windows_.depth();
    Workspace<float> rows(k.tile_rows * most_depth);
    // Packs panels of dy, beginning with the first one that is not read in place.
    const int64_t packed_from = is_float ? out_ / width * width : 0;
    Workspace<float> panels((reference::pieces_of(out_, width) * width - packed_from) * most_depth);
    for (int64_t p = begin; p < end; p += most_depth) {
      const int64_t depth = std::min(most_depth, end - p);
      if (packed_from < out_)
        k.pack_columns(part(dy_, p, packed_from), depth, out_ - packed_from, panels.data());
      for (int64_t i = 0; i < entries; i += k.tile_rows) {
        const int64_t height = std::min<int64_t>(k.tile_rows, entries - i);
        pack_window_entries(windows_, p, depth, i, i + height, k.tile_rows, rows.data());
        for (int64_t j = 0; j < out_; j += width) {
          const bool in_place = j < packed_from;
          const float* columns = in_place ? static_cast<const float*>(part(dy_, p, j).data)
                                          : panels.data() + (j - packed_from) * depth;
          k.tile_product(depth, depth, rows.data(), columns, in_place ? dy_.row : width, height,
                         std::min<int64_t>(width, out_ - j), nullptr, p > begin,
                         sums + i * out_ + j, out_);
        }
      }
    }
  }

  const Windows<Element>& windows_;
  simd::Matrix dy_;
  int64_t out_, share_;
};

/// Computes dw = dy^T windows, for one group.
template <class Element>
void few_weights_gradient(const ConvSizes<Element>& s, const Windows<Element>& windows,
                          const Element* dy, Tensor& dw) {
  const MemoryScope scope(MemoryUse::workspace);
  Tensor turned = empty({s.kernel_rows, s.kernel_columns, s.in, s.out});
  FewWeights<Element>(windows, dy, s.out).add_up(turned.data<float>());
  backend_for(dw).copy(views::permute(turned, {3, 2, 0, 1}), dw);
}

}  // namespace halftone::cpu
