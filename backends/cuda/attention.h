// Shared parts of the attention kernels: heads in memory, tiles of 64 queries x 64 keys whose
// scores are in registers (tiles.h), the rules that turn products into scores and weights, and
// products of weights in shared memory with rows of a head. There is never a tensor of queries x
// keys: Dao et al. 2022, "FlashAttention: fast and memory-efficient exact attention with
// IO-awareness".
#pragma once

#include <cmath>
#include <limits>

#include <mma.h>

#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/tiles.h>
#include <halftone/core/backend.h>
#include <halftone/core/math.h>
#include <halftone/core/random.h>

namespace halftone::cuda::attention {

template <class C> using ScoreTile = TileShape<C, 1, 1>;
/// The tile for sums of `across` x 64 result columns; wider heads are cut into slices of this
/// width.
template <class C, int across> using ResultTile = TileShape<C, 1, across>;
template <class C> using WeightStrip = Strip<C, tile_edge, tile_edge>;

struct Sizes {
  int64_t batch_heads, heads, l, s, e, ev;
  int64_t group;  // heads of q that share one head of keys and values
  bool any_empty() const { return batch_heads * l * s * e * ev == 0; }
  HT_HD int64_t query_blocks() const { return (l + tile_edge - 1) / tile_edge; }
  HT_HD int64_t key_blocks() const { return (s + tile_edge - 1) / tile_edge; }
};
inline Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {q.shape()[0] * q.shape()[1],
          q.shape()[1],
          q.shape()[2],
          k.shape()[2],
          q.shape()[3],
          v.shape()[3],
          k.shape()[1] == 0 ? 1 : q.shape()[1] / k.shape()[1]};
}

/// A tensor [n, heads, rows, columns] with unit stride in the last dimension. Each head of keys and
/// values counts `group` times.
template <class T> struct Heads {
  T* data;
  int64_t heads, group, batch_step, head_step, row_step;

  explicit Heads(const Tensor& x, int64_t sharing = 1)
      : data(x.data<T>()),
        heads(x.shape()[1]),
        group(sharing),
        batch_step(x.strides()[0]),
        head_step(x.strides()[1]),
        row_step(x.strides()[2]) {}
  __device__ T* row(int64_t counted, int64_t i) const {
    const int64_t head = group == 1 ? counted : counted / group;
    return data + head / heads * batch_step + head % heads * head_step + i * row_step;
  }
  /// The rows of a head as lines and its columns as levels, or the other way round.
  __device__ MatrixFactor<T> by_rows(int64_t head) const { return {row(head, 0), 0, row_step, 1}; }
  __device__ MatrixFactor<T> by_columns(int64_t head) const {
    return {row(head, 0), 0, 1, row_step};
  }
};

/// The 4 x 4 places of a thread in a tile of queries and keys, with either as rows.
template <class C, bool keys_down> struct Patch : Sums<ScoreTile<C>> {
  using Base = Sums<ScoreTile<C>>;
  __device__ C& at(int query, int key) {
    return keys_down ? this->of[key][query] : this->of[query][key];
  }
  static __device__ int query(int a) { return keys_down ? Base::column(a) : Base::row(a); }
  static __device__ int key(int b) { return keys_down ? Base::row(b) : Base::column(b); }
  /// Writes the places as weights: levels are columns, lines rows.
  __device__ void put(WeightStrip<C>& strip) const {
#pragma unroll
    for (int j = 0; j < square; ++j) {
      Pack<C, square> line;
#pragma unroll
      for (int i = 0; i < square; ++i) line.values[i] = this->of[i][j];
      *reinterpret_cast<Pack<C, square>*>(&strip.values[Base::column(j)][Base::row(0)]) = line;
    }
  }
};

/// Combines the values of the 16 threads that share the rows of a patch.
template <class C, class Combine> __device__ C over_row(C value, Combine combine) {
  for (int bits = 8; bits > 0; bits /= 2)
    value = combine(value, __shfl_xor_sync(whole_warp, value, bits));
  return value;
}

/// Turns products of queries and keys into scores, and decides which weights dropout keeps.
template <class C> struct Rule {
  static constexpr C minus_infinity = -std::numeric_limits<C>::infinity();
  C scale;
  bool causal;
  Operand mask;
  int64_t mask_steps[4];
  int64_t heads, l, s;
  uint32_t dropped_below;  // compared with the upper 24 bits of a word: 0 without dropout
  C kept_factor;
  RandomKey key;
  const uint64_t* key_shift;

  Rule(const Context& context, const Sizes& sizes, const Tensor& mask_tensor,
       const AttentionSettings& settings)
      : scale(C(settings.scale)),
        causal(settings.causal),
        mask(mask_tensor),
        mask_steps{},
        heads(sizes.heads),
        l(sizes.l),
        s(sizes.s),
        dropped_below(uint32_t(std::ceil(settings.dropout * 0x1p24))),
        kept_factor(C(1 / (1 - settings.dropout))),
        key(settings.key),
        key_shift(context.key_shift()) {
    for (int d = 0; d < 4 && mask_tensor.defined(); ++d) mask_steps[d] = mask_tensor.strides()[d];
  }

  /// Returns the number of keys that queries before `end` see.
  __device__ int64_t keys_before(int64_t end) const { return causal && end < s ? end : s; }
  __device__ bool sees(int64_t i, int64_t j) const { return i < l && j < s && (!causal || j <= i); }

  __device__ C mask_at(int64_t head, int64_t i, int64_t j) const {
    const int64_t place = head / heads * mask_steps[0] + head % heads * mask_steps[1] +
                          i * mask_steps[2] + j * mask_steps[3];
    if (mask.dtype == boolean)
      return static_cast<const bool*>(mask.data)[place] ? C(0) : minus_infinity;
    return load_floating<C>(mask, place);
  }

  /// Turns products into scores, -infinity for unseen keys. The strip holds the mask, and is free
  /// before and after. All threads of the block must call it.
  template <bool keys_down>
  __device__ void apply(Patch<C, keys_down>& patch, int64_t head, int64_t i0, int64_t j0,
                        WeightStrip<C>& strip) const {
    if (mask.data) {
#pragma unroll 1
      for (int place = int(threadIdx.x); place < tile_edge * tile_edge; place += product_threads) {
        const int a = place / tile_edge, b = place % tile_edge;
        const bool inside = i0 + a < l && j0 + b < s;
        strip.values[keys_down ? a : b][keys_down ? b : a] =
            inside ? mask_at(head, i0 + a, j0 + b) : C(0);
      }
      __syncthreads();
    }
    const bool condition = mask.dtype == boolean;
#pragma unroll
    for (int a = 0; a < square; ++a)
#pragma unroll
      for (int b = 0; b < square; ++b) {
        C score = scale * patch.at(a, b);
        const int y = patch.query(a), x = patch.key(b);
        if (mask.data) {
          const C added = strip.values[keys_down ? y : x][keys_down ? x : y];
          score = condition && added != 0 ? minus_infinity : score + added;
        }
        patch.at(a, b) = sees(i0 + y, j0 + x) ? score : minus_infinity;
      }
    if (mask.data) __syncthreads();
  }

  /// Returns a mask. Bit 4 a + b: dropout keeps the weight of query i0 + query(a) for key j0 +
  /// key(b); its random number is that of the row-major position.
  template <bool keys_down>
  __device__ unsigned kept(const Patch<C, keys_down>& patch, int64_t head, int64_t i0,
                           int64_t j0) const {
    if (dropped_below == 0) return 0xffff;
    const uint64_t offset = key.offset + (key_shift ? *key_shift : 0);
    unsigned bits = 0;
#pragma unroll 1
    for (int a = 0; a < square; ++a) {
      const auto place = uint64_t((head * l + i0 + patch.query(0) + a) * s + j0 + patch.key(0));
      const int first = int(place % 4);
      const auto now = Philox::words(key.seed, offset + place / 4);
      const auto next = Philox::words(key.seed, offset + place / 4 + 1);
#pragma unroll
      for (int word = 0; word < 7; ++word) {
        const int b = word - first;
        const uint32_t number = word < 4 ? now[std::size_t(word % 4)] : next[std::size_t(word % 4)];
        if (b >= 0 && b < square && (number >> 8) >= dropped_below) bits |= 1u << (square * a + b);
      }
    }
    return bits;
  }
  __device__ C factor_of(unsigned bits, int a, int b) const {
    return bits >> (square * a + b) & 1 ? kept_factor : C(0);
  }
};

/// Computes sums += weights^T b over levels first .. end - 1 of b, at most 64. All threads of the
/// block must call it. The weights may have been written just before, and may be overwritten just
/// after.
template <class Tile, class C, class B>
__device__ void add_weighted(const WeightStrip<C>& weights, B& b, int64_t first, int64_t end,
                             Strip<C, Tile::columns, Tile::depth>& strip, Sums<Tile>& sums) {
  b.fetch(first, end);
  for (int64_t k = first; k < end; k += Tile::depth) {
    b.put(strip);
    __syncthreads();
    if (k + Tile::depth < end) b.fetch(k + Tile::depth, end);
    sums.template add<Tile::depth>(weights.values[k - first], weights.width, strip.values[0],
                                   strip.width);
    __syncthreads();
  }
}

/// Returns the distance of the two parts of log_sum_exp; 0 if it has one part.
inline int64_t statistics_apart(const Tensor& log_sum_exp) {
  return log_sum_exp.shape()[0] == 1 ? 0 : log_sum_exp.numel() / 2;
}

inline int64_t slices_of(int64_t columns, int across) {
  return std::max<int64_t>((columns + tile_edge * across - 1) / (tile_edge * across), 1);
}

/// Calls run.operator()<T, across>() for the dtype, with 128 columns at a time if heads have more
/// than 64.
template <class Run> void visit_kernels(DType dtype, int64_t columns, const Run& run) {
  visit_floating(dtype, "attention", [&]<class T>() {
    if constexpr (sizeof(T) < 8)
      if (columns > tile_edge) return run.template operator()<T, 2>();
    run.template operator()<T, 1>();
  });
}

// The two products of attention, for a block of 64 queries and 64 keys at a time: rows of a head
// with rows of another (scores), and weights with rows of a head (results). f64 and f32 are
// multiplied directly (tiles.h); f16 and bf16 with tensor cores, 16 x 16 x 16 at a time
// (nvcuda::wmma), summed in f32. The layout of a tensor core's sums is unspecified, so they go
// through shared memory to the threads' places (Sums).

/// Rows first .. end - 1 of a head.
template <class T> struct HeadRows {
  const T* data;
  int64_t step, first, end;

  __device__ HeadRows(const Heads<const T>& x, int64_t head, int64_t begin, int64_t stop)
      : data(x.row(head, 0)), step(x.row_step), first(begin), end(stop) {}
  __device__ MatrixFactor<const T> lines() const { return {data, 0, step, 1}; }
  __device__ MatrixFactor<const T> levels() const { return {data, 0, 1, step}; }
};

/// 64 x 64 short floats for tensor cores. Rows are padded, so that 8 of them use all banks.
template <class T> struct ShortTile {
  using Element = std::conditional_t<std::is_same_v<T, Float16>, __half, __nv_bfloat16>;
  static constexpr int width = tile_edge + 8;
  Element of[tile_edge][width];

  /// Loads columns first_column .. columns - 1, at most 64; missing elements are 0.
  __device__ void load(const HeadRows<T>& rows, int64_t first_column, int64_t columns) {
    using Line = Pack<uint16_t, 8>;
    const bool aligned =
        reinterpret_cast<uintptr_t>(rows.data + first_column) % sizeof(Line) == 0 &&
        rows.step % Line::size == 0;
#pragma unroll 1
    for (int place = int(threadIdx.x); place < tile_edge * tile_edge / Line::size;
         place += product_threads) {
      const int i = place / (tile_edge / Line::size), c = place % (tile_edge / Line::size) * 8;
      const int64_t row = rows.first + i, column = first_column + c;
      Line line{};
      if (row < rows.end) {
        const T* const from = rows.data + row * rows.step + column;
        if (aligned && column + Line::size <= columns) line = *reinterpret_cast<const Line*>(from);
        else
          for (int k = 0; k < Line::size; ++k)
            if (column + k < columns) line.values[k] = from[k].bits;
      }
      *reinterpret_cast<Line*>(&of[i][c]) = line;
    }
  }
};

/// The 16 x 32 places of one warp in 64 x 64 sums.
template <class T> class WarpSums {
  using Element = typename ShortTile<T>::Element;
  template <class Use, class Layout>
  using Factor = nvcuda::wmma::fragment<Use, 16, 16, 16, Element, Layout>;
  using RowMajor = nvcuda::wmma::row_major;
  using ColumnMajor = nvcuda::wmma::col_major;
  using Left = nvcuda::wmma::matrix_a;
  using Right = nvcuda::wmma::matrix_b;

 public:
  __device__ WarpSums() {
    for (auto& tile : tiles_) nvcuda::wmma::fill_fragment(tile, 0.0f);
  }
  /// Adds a b^T over columns 0 .. depth - 1 of both.
  __device__ void add_rows(const ShortTile<T>& a, const ShortTile<T>& b, int depth) {
    for (int k = 0; k < depth; k += 16) {
      Factor<Left, RowMajor> left;
      nvcuda::wmma::load_matrix_sync(left, &a.of[row()][k], a.width);
      for (int t = 0; t < 2; ++t) {
        Factor<Right, ColumnMajor> right;
        nvcuda::wmma::load_matrix_sync(right, &b.of[column(t)][k], b.width);
        nvcuda::wmma::mma_sync(tiles_[t], left, right, tiles_[t]);
      }
    }
  }
  /// Adds a^T b over all 64 rows.
  __device__ void add_columns(const ShortTile<T>& a, const ShortTile<T>& b) {
    for (int k = 0; k < tile_edge; k += 16) {
      Factor<Left, ColumnMajor> left;
      nvcuda::wmma::load_matrix_sync(left, &a.of[k][row()], a.width);
      for (int t = 0; t < 2; ++t) {
        Factor<Right, RowMajor> right;
        nvcuda::wmma::load_matrix_sync(right, &b.of[k][column(t)], b.width);
        nvcuda::wmma::mma_sync(tiles_[t], left, right, tiles_[t]);
      }
    }
  }
  __device__ void store(WeightStrip<float>& to) const {
    for (int t = 0; t < 2; ++t)
      nvcuda::wmma::store_matrix_sync(&to.values[row()][column(t)], tiles_[t], to.width,
                                      nvcuda::wmma::mem_row_major);
  }

 private:
  static __device__ int warp() { return int(threadIdx.x) / warp_lanes; }
  static __device__ int row() { return warp() / 2 * 16; }
  static __device__ int column(int t) { return warp() % 2 * 32 + t * 16; }

  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> tiles_[2];
};

/// Shared memory of a kernel, and the products in it. All threads of the block must call them.
/// Values written with put() just before are visible, and may be overwritten just after.
/// short_weights: weights and gradients of scores are rounded to T for tensor cores; otherwise they
/// stay C, and tensor cores compute only scores.
template <class T, int across, bool short_weights> struct Products {
  using C = compute_t<T>;
  using Result = ResultTile<C, across>;
  static constexpr bool short_scores = is_short_float<T>;
  static_assert(short_scores || !short_weights);

  struct OfT {
    ShortTile<T> a, b;
  };
  struct alignas(32) Nothing {};
  union alignas(32) {
    WeightStrip<C> weights;  // also holds masks
    std::conditional_t<short_weights, ShortTile<T>, Nothing> rounded;
  };
  union alignas(32) {
    Strips<ScoreTile<C>> scores;
    Strips<Result> results;
    std::conditional_t<short_scores, OfT, Nothing> tiles;
    std::conditional_t<short_scores, WeightStrip<C>, Nothing> sums;
  };

  /// Adds a b^T over `depth` columns.
  __device__ void add_scores(const HeadRows<T>& a, const HeadRows<T>& b, int64_t depth,
                             Sums<ScoreTile<C>>& to) {
    if constexpr (short_scores) {
      WarpSums<T> own;
      for (int64_t d = 0; d < depth; d += tile_edge) {
        tiles.a.load(a, d, depth), tiles.b.load(b, d, depth);
        __syncthreads();
        own.add_rows(tiles.a, tiles.b, int(depth - d < tile_edge ? depth - d : tile_edge));
        __syncthreads();
      }
      hand_out(own, to, 0);
    } else {
      const MatrixFactor<const T> left = a.lines(), right = b.lines();
      RowCarrier<ScoreTile<C>, MatrixFactor<const T>> rows(left, 0, a.first, a.end);
      ColumnCarrier<ScoreTile<C>, MatrixFactor<const T>> columns(right, 0, b.first, b.end);
      add_product<ScoreTile<C>>(rows, columns, 0, depth, scores, to);
    }
  }

  template <bool keys_down> __device__ void put(const Patch<C, keys_down>& patch) {
    if constexpr (short_weights) {
      using Base = Sums<ScoreTile<C>>;
#pragma unroll
      for (int j = 0; j < square; ++j) {
        Pack<uint16_t, square> line;
#pragma unroll
        for (int i = 0; i < square; ++i) line.values[i] = narrow<T>(patch.of[i][j]).bits;
        *reinterpret_cast<Pack<uint16_t, square>*>(&rounded.of[Base::column(j)][Base::row(0)]) =
            line;
      }
    } else {
      patch.put(weights);
    }
  }

  /// Adds the transpose of the values of put(), times rows of a head (its levels, at most 64) from
  /// column `first_column` on.
  __device__ void add_weighted(const HeadRows<T>& b, int64_t first_column, int64_t columns,
                               Sums<Result>& to) {
    if constexpr (short_weights) {
#pragma unroll
      for (int slice = 0; slice < across; ++slice) {
        tiles.b.load(b, first_column + slice * tile_edge, columns);
        __syncthreads();
        WarpSums<T> own;
        own.add_columns(rounded, tiles.b);
        __syncthreads();
        hand_out(own, to, slice * square);
      }
    } else {
      const MatrixFactor<const T> factor = b.levels();
      ColumnCarrier<Result, MatrixFactor<const T>> carrier(factor, 0, first_column, columns);
      attention::add_weighted<Result>(weights, carrier, b.first, b.end, results.b, to);
    }
  }

  /// Stores rows of a head, up to the end of the tensor: row first + i, column first_column + c.
  __device__ void store_rows(const Sums<Result>& from, const Heads<T>& y, int64_t head,
                             int64_t first, int64_t end, int64_t first_column, int64_t columns) {
    store_sums(from, results, [&](int i, int c, C sum) {
      if (first + i < end && first_column + c < columns)
        y.row(head, first + i)[first_column + c] = narrow<T>(sum);
    });
  }

 private:
  /// Distributes the sums of the warps to the threads, in columns from `column` on.
  template <class Tile>
  __device__ void hand_out(const WarpSums<T>& own, Sums<Tile>& to, int column) {
    own.store(sums);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < square; ++i) {
      const auto line = *reinterpret_cast<const Pack<C, square>*>(
          &sums.values[Sums<Tile>::row(i)][Sums<Tile>::column(0)]);
#pragma unroll
      for (int j = 0; j < square; ++j) to.of[i][column + j] += line.values[j];
    }
    __syncthreads();
  }
};

/// Gradients of scores are rounded to bf16, which has the range of f32; in f16 they could overflow.
template <class T> inline constexpr bool short_gradients = std::is_same_v<T, BFloat16>;

}  // namespace halftone::cuda::attention
