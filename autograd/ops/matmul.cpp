// torch.matmul's rules for ranks and batches.
#include <halftone/autograd/ops/matmul.h>

#include <algorithm>
#include <map>
#include <string>

#include <halftone/autograd/ops/shape.h>
#include <halftone/core/formulas.h>
#include <halftone/core/pending.h>

namespace halftone {

namespace {
Shape batch_of(Shape shape) {
  for (int i = 0; i < 2; ++i) shape.erase(shape.rank() - 1);
  return shape;
}
Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows), batch.push_back(columns);
  return batch;
}
/// Returns x as [count, rows, columns] for a whole batch.
Tensor spread(const Tensor& x, const Shape& batch) {
  const Shape full = with_matrix(batch, x.size(-2), x.size(-1));
  return views::reshaped(views::expand(x, full), {numel_of(batch), x.size(-2), x.size(-1)});
}
/// Returns [count, rows, columns] as [count rows, columns].
Tensor folded(const Tensor& x) {
  return views::reshaped(x, {x.shape()[0] * x.shape()[1], x.shape()[2]});
}
}  // namespace

// Products of numbers with scales: core/formats/sums.h says how their rows look.

Tensor detail::with_scales(const Tensor& numbers, const Tensor& scales, int64_t block) {
  const int64_t rows = numbers.size(0), k = numbers.size(1), blocks = scales.size(1);
  Tensor y = zeros({rows, blocks * (block + 1)}, f32, numbers.device());
  const Tensor all = views::reshaped(y, {rows, blocks, block + 1});
  const auto fill = [&](int64_t first, int64_t count, int64_t from, int64_t width) {
    if (count == 0) return;
    Tensor to = views::slice(views::slice(all, 1, first, count), 2, 0, width);
    const Tensor part = views::slice(numbers, 1, from, count * width);
    backend_for(numbers).copy(views::reshaped(part, {rows, count, width}), to);
  };
  const int64_t whole = k / block;
  fill(0, whole, 0, block);
  fill(whole, blocks - whole, whole * block, k - whole * block);
  Tensor last = views::reshaped(views::slice(all, 2, block, 1), {rows, blocks});
  backend_for(numbers).copy(scales, last);
  return y;
}

/// Returns a matrix with its scales, along the last dimension.
static Tensor with_own_scales(const F8Operand& operand, const Tensor& numbers) {
  const Tensor& scales = operand.factor;
  if (scales.rank() != 2 || scales.size(0) != numbers.size(0) || !numbers.is_contiguous())
    fail<UsageError>("matmul", "the scales of ", described(numbers),
                     " belong to rows of another dimension than the sum's. Quantize the operand "
                     "for this product.");
  return detail::with_scales(numbers, scales, operand.block);
}

/// c = sums factor + bias, with one rounding to c's dtype. Overwrites the sums, which are f32.
static void scale_sums(Tensor& sums, const Tensor& factor, const Tensor& bias, Tensor& c) {
  Backend& backend = backend_for(sums);
  backend.binary(call_of<BinaryFormulas>(formula::Mul{}), sums, views::expand(factor, sums.shape()),
                 sums);
  if (bias.defined())
    backend.binary(call_of<BinaryFormulas>(formula::Add{}), sums,
                   views::expand(converted(bias, f32), sums.shape()), sums);
  backend.copy(sums, c);
}

static Tensor product_of_factors(const Tensor& a, const Tensor& b) {
  Tensor both = empty({}, f32, a.device());
  backend_for(a).binary(call_of<BinaryFormulas>(formula::Mul{}), a, b, both);
  return both;
}

static void multiply_scaled(const Tensor& a, const Tensor& b, const Tensor& bias,
                            const Accumulator& accumulator, Tensor& c) {
  const auto left = f8_operand(a), right = f8_operand(b);
  if (!left || !right || left->block != accumulator.scaled || right->block != accumulator.scaled ||
      a.rank() != 2 || b.rank() != 2)
    fail<UsageError>("matmul", "this accumulator reads numbers and their scales, one for ",
                     accumulator.scaled, " numbers, and an operand has none: ", described(a),
                     " and ", described(b), ". Quantize both operands in such blocks.");
  const Tensor rows = with_own_scales(*left, left->numbers),
               columns = with_own_scales(*right, views::transpose(right->numbers, 0, 1));
  Tensor sums = empty(c.shape(), f32, c.device());
  backend_for(a).matmul_accumulating(rows, views::transpose(columns, 0, 1), {}, accumulator, sums);
  scale_sums(sums, product_of_factors(left->whole, right->whole), bias, c);
}

void detail::multiply_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                   const Accumulator& accumulator, Tensor& c) {
  Backend& backend = backend_for(a);
  const MemoryScope scope(MemoryUse::workspace);
  if (accumulator.scaled > 0) {
    if (a.numel() == 0 || c.numel() == 0) return backend.matmul(a, b, bias, c);
    return multiply_scaled(a, b, bias, accumulator, c);
  }
  const auto apart = [](const Tensor& x) {
    auto operand = f8_operand(x);
    if (operand && operand->numbers.dtype() != f32) operand.reset();
    return operand;
  };
  const auto left = apart(a), right = apart(b);
  if (!left && !right) return backend.matmul_accumulating(a, b, bias, accumulator, c);
  Tensor sums = empty(c.shape(), f32, c.device());
  backend.matmul_accumulating(left ? left->numbers : converted(a, f32),
                              right ? right->numbers : converted(b, f32), {}, accumulator, sums);
  const Tensor factor = !left    ? right->factor
                        : !right ? left->factor
                                 : product_of_factors(left->factor, right->factor);
  scale_sums(sums, factor, bias, c);
}

double Matmul::flops(std::span<const Tensor> inputs) {
  const Tensor &x = inputs[0], &y = inputs[1];
  if (x.rank() < 2 || y.rank() < 2) return 0;
  return 2 * double(std::max(x.numel() * y.size(-1), y.numel() * x.size(-2)));
}

double Linear::flops(std::span<const Tensor> inputs) {
  const Tensor &x = inputs[0], &weight = inputs[1];
  return weight.rank() == 2 ? 2 * double(x.numel()) * double(weight.size(0)) : 0;
}

Tensor Matmul::forward(const Tensor& a_in, const Tensor& b_in) {
  check::floating("matmul", a_in);
  check::same_dtype("matmul", a_in, b_in);
  save(a_in, b_in);
  Tensor c = product(a, b, a.dtype(), accumulate);
  if (a_in.rank() == 2 && b_in.rank() == 2) return c;
  return detail::as_shape(c, with_matrix(batch, a_in.size(-2), b_in.size(-1)));
}

void Matmul::save(const Tensor& a_in, const Tensor& b_in) {
  a_shape = a_in.shape(), b_shape = b_in.shape();
  const bool matrices = a_in.rank() == 2 && b_in.rank() == 2;
  if (!matrices) batch = broadcast_shapes("matmul", batch_of(a_shape), batch_of(b_shape));
  a = detail::matrix_layout(matrices ? a_in : spread(a_in, batch));
  b = detail::matrix_layout(matrices ? b_in : spread(b_in, batch));
}

std::array<Tensor, 2> Matmul::backward(const Tensor& dc_in) const {
  const Tensor dc = detail::matrix_layout(
      a.rank() == 2 ? dc_in : views::reshaped(dc_in, {a.shape()[0], a.shape()[1], b.shape()[2]}));
  Tensor da, db;
  if (needs[0]) da = gradient(0, dc, detail::transposed(b));
  if (needs[1]) db = gradient(1, detail::transposed(a), dc);
  return {da, db};
}

Tensor Matmul::gradient(int which, const Tensor& x, const Tensor& y) const {
  const Shape& shape = which == 0 ? a_shape : b_shape;
  const DType dtype = needs.dtype(which);
  if (x.rank() == 2) return product(x, y, dtype, accumulate);
  const Shape full = with_matrix(batch, x.shape()[1], y.shape()[2]);
  if (numel_of(shape) == numel_of(full))
    return detail::as_shape(product(x, y, dtype, accumulate), shape);
  // One b for the whole batch: the product includes the sum over the batch.
  if (which == 1 && numel_of(batch_of(shape)) == 1 && a.is_contiguous() && y.is_contiguous())
    return detail::as_shape(product(detail::transposed(folded(a)), folded(y), dtype, accumulate),
                            shape);
  const Tensor all = product(x, y, dtype == f64 ? f64 : f32, accumulate);
  return reduce_to(detail::as_shape(all, full), shape, dtype);
}

namespace {
/// Multiplies modulo the dtype's size, in parts of the inner dimension: never all products at once.
Tensor integer_matmul(const Tensor& a, const Tensor& b) {
  check::same_dtype("matmul", a, b);
  check::numbers("matmul", a);
  const Shape batch = broadcast_shapes("matmul", batch_of(a.shape()), batch_of(b.shape()));
  Tensor c = zeros(with_matrix(batch, a.size(-2), b.size(-1)), a.dtype(), a.device());
  constexpr int64_t most_products = 1 << 20;
  const int64_t k = a.size(-1),
                some = std::max<int64_t>(1, most_products / std::max<int64_t>(c.numel(), 1));
  for (int64_t start = 0; start < k; start += some) {
    const Tensor left = unsqueeze(slice(a, -1, start, start + some), -1);
    const Tensor right = unsqueeze(slice(b, -2, start, start + some), -3);
    c = c + cast(sum(left * right, {-2}), c.dtype());
  }
  return c;
}
}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check::defined("matmul", "a", a);
  check::defined("matmul", "b", b);
  if (a.rank() == 0 || b.rank() == 0)
    fail<ShapeError>("matmul", "a is ", described(a), ", b is ", described(b),
                     "; scalars have no product. Use mul().");
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  const int64_t k = a.size(-1), n = b.size(-1);
  if (b.size(-2) != k)
    fail<ShapeError>("matmul", "inner sizes differ: a is ", described(a), ", b is ", described(b),
                     "; a.size(-1) must equal b.size(-2).");
  if (!is_floating(a.dtype()) && !is_floating(b.dtype())) return integer_matmul(a, b);
  if (a.rank() == 2 && b.rank() == 2) return apply(Matmul{}, a, b);
  if (b.rank() == 2) {  // one matrix for the whole batch: fold the batch into the rows
    Shape shape = a.shape();
    shape[a.rank() - 1] = n;
    return reshape(apply(Matmul{}, reshape(a, {rows_of(a.shape()), k}), b), shape);
  }
  return apply(Matmul{}, a, b);
}

// einsum by batched matrix products of two operands each. In such a product every letter is of one
// of four kinds,
//   batch (both operands and the result), a's, b's (one operand and the result), summed (both).
// Letters that occur in one operand only, and not in the result, are summed first. "..." is parsed
// into the letters '0', '1', ..., '0' for the last dimension.

namespace {

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
int times(char letter, const std::string& in) { return int(std::ranges::count(in, letter)); }

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

[[noreturn]] void refuse(std::string_view equation, std::string_view why) {
  fail<UsageError>("einsum", "\"", equation, "\": ", why,
                   ". Write it as \"ij,jk->ik\", a letter per dimension.");
}

/// Returns the letters of an operand or the result; its "..." becomes `unnamed` dimensions.
std::string spelled(std::string_view equation, const std::string& part, int unnamed) {
  std::string dots, letters = part;
  for (int i = unnamed - 1; i >= 0; --i) dots += char('0' + i);
  if (const std::size_t at = part.find("..."); at != std::string::npos) letters.replace(at, 3, "");
  if (!std::ranges::all_of(letters, is_letter))
    refuse(equation, "it has a character that is not a letter");
  if (const std::size_t at = part.find("..."); at != std::string::npos) letters.insert(at, dots);
  return letters;
}

Equation parsed(std::string_view equation, const std::vector<Tensor>& operands) {
  std::string text(equation);
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->");
  std::string left = text.substr(0, arrow) + ',';
  Equation e;
  int most_unnamed = 0;
  for (std::size_t comma; (comma = left.find(',')) != std::string::npos; left.erase(0, comma + 1)) {
    const std::string part = left.substr(0, comma);
    const std::size_t place = e.operands.size();
    if (place == operands.size())
      refuse(equation, "there are more operands in it than were passed");
    const bool open = part.find("...") != std::string::npos;
    const int named = int(part.size()) - (open ? 3 : 0), rank = operands[place].rank();
    if (open ? rank < named : rank != named)
      fail<ShapeError>("einsum", "\"", equation, "\" has ", named,
                       " letters for an operand that is ", described(operands[place]),
                       ". Give one per dimension.");
    most_unnamed = std::max(most_unnamed, rank - named);
    e.operands.push_back(spelled(equation, part, rank - named));
  }
  if (e.operands.size() != operands.size())
    refuse(equation, "there are fewer operands in it than were passed");
  std::string all;
  for (const std::string& operand : e.operands) all += operand;
  if (arrow != std::string::npos) {
    e.result = spelled(equation, text.substr(arrow + 2), most_unnamed);
  } else {
    std::string once;
    for (const char c : all)
      if (is_letter(c) && times(c, all) == 1) once += c;
    std::ranges::sort(once);
    e.result = spelled(equation, "..." + once, most_unnamed);
  }
  for (const char c : e.result)
    if (times(c, e.result) > 1) refuse(equation, "a letter is twice in the result");
    else if (!has(all, c)) refuse(equation, "the result has a letter of no operand");
  return e;
}

/// Returns the letters of `from` for which keep(letter) is true.
template <class Keep> std::string those(const std::string& from, Keep keep) {
  std::string kept;
  std::ranges::copy_if(from, std::back_inserter(kept), keep);
  return kept;
}

/// A tensor with its dimensions named by letters.
struct Labelled {
  Tensor x;
  std::string letters;

  int64_t size(char letter) const { return x.shape()[int(letters.find(letter))]; }
  int64_t size(const std::string& some) const {
    int64_t product = 1;
    for (const char c : some) product *= size(c);
    return product;
  }
  /// Replaces the two dimensions of a repeated letter by their diagonal, which becomes the last.
  void take_diagonals(std::string_view equation) {
    for (std::size_t i = 0; i < letters.size(); ++i)
      if (const std::size_t j = letters.find(letters[i], i + 1); j != std::string::npos) {
        const char c = letters[i];
        if (x.shape()[int(i)] != x.shape()[int(j)])
          fail<ShapeError>("einsum", "\"", equation, "\": ", c, " is twice in ", described(x),
                           ", with two sizes. A diagonal has one.");
        x = diagonal(x, 0, int(i), int(j));
        letters = letters.erase(j, 1).erase(i, 1) + c;
        i = std::size_t(-1);
      }
  }
  /// Sums over the letters that occur nowhere else; sums of integers are i64, as sum() gives them.
  void sum_alone(const std::string& elsewhere) {
    Dims dims;
    for (std::size_t i = 0; i < letters.size(); ++i)
      if (!has(elsewhere, letters[i])) dims.push_back(int64_t(i));
    if (dims.empty()) return;
    x = is_floating(x.dtype()) ? cast(sum(x, dims), x.dtype()) : sum(x, dims);
    letters = those(letters, [&](char c) { return has(elsewhere, c); });
  }
  Tensor in_order(const std::string& order) const {
    Dims dims;
    for (const char c : order) dims.push_back(int64_t(letters.find(c)));
    return permute(x, dims);
  }
};

/// Checks the size of each letter; operands of size 1 are expanded to it.
void agree_on_sizes(std::string_view equation, std::vector<Labelled>& operands) {
  std::map<char, std::pair<int64_t, const Labelled*>> sizes;
  for (const Labelled& o : operands)
    for (const char c : o.letters) {
      auto& [size, owner] = sizes.try_emplace(c, o.size(c), &o).first->second;
      if (size != o.size(c) && size != 1 && o.size(c) != 1)
        fail<ShapeError>("einsum", "\"", equation, "\": ", is_letter(c) ? std::string(1, c) : "...",
                         " is ", size, " in ", described(owner->x), " and ", o.size(c), " in ",
                         described(o.x), ". A letter has one size.");
      if (size == 1) size = o.size(c), owner = &o;
    }
  for (Labelled& o : operands) {
    Shape shape;
    for (const char c : o.letters) shape.push_back(sizes.at(c).first);
    o.x = expand(o.x, shape);
  }
}

/// Returns the product of two operands, summed over the letters that `kept` lacks.
Labelled product_of(Labelled a, Labelled b, const std::string& kept) {
  a.sum_alone(kept + b.letters), b.sum_alone(kept + a.letters);
  const DType common = promote(a.x.dtype(), b.x.dtype());
  a.x = cast(a.x, common), b.x = cast(b.x, common);
  const auto in_both = [&](char c) { return has(a.letters, c) && has(b.letters, c); };
  const std::string batch = those(a.letters, [&](char c) { return in_both(c) && has(kept, c); });
  const std::string summed = those(a.letters, [&](char c) { return in_both(c) && !has(kept, c); });
  const std::string of_a = those(a.letters, [&](char c) { return !in_both(c); });
  const std::string of_b = those(b.letters, [&](char c) { return !in_both(c); });
  const Tensor left =
      reshape(a.in_order(batch + of_a + summed), {a.size(batch), a.size(of_a), a.size(summed)});
  const Tensor right =
      reshape(b.in_order(batch + summed + of_b), {a.size(batch), a.size(summed), b.size(of_b)});
  // Without a sum: a product of each element with each, exact to one rounding.
  const Tensor product = summed.empty() ? left * right : matmul(left, right);
  Shape shape;
  for (const char c : batch + of_a) shape.push_back(a.size(c));
  for (const char c : of_b) shape.push_back(b.size(c));
  return {reshape(product, shape), batch + of_a + of_b};
}

}  // namespace

Tensor einsum(std::string_view equation, const std::vector<Tensor>& given) {
  if (given.empty()) fail<UsageError>("einsum", "got no operand. Pass at least one tensor.");
  for (const Tensor& x : given) check::numbers("einsum", x);
  const Equation e = parsed(equation, given);
  // A policy that names einsum casts before any sum, as PyTorch's list for CUDA does.
  std::vector<Tensor> inputs = given;
  if (InputCaster* caster = active_caster()) caster->cast_inputs(composed::einsum, inputs);
  DType common = inputs[0].dtype();
  for (const Tensor& x : inputs) common = promote(common, x.dtype());
  std::vector<Labelled> operands;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operands.push_back({cast(inputs[i], common), e.operands[i]});
    operands.back().take_diagonals(equation);
  }
  agree_on_sizes(equation, operands);
  Labelled total = operands[0];
  for (std::size_t i = 1; i < operands.size(); ++i) {
    std::string kept = e.result;
    for (std::size_t later = i + 1; later < operands.size(); ++later)
      kept += operands[later].letters;
    total = product_of(total, operands[i], kept);
  }
  total.sum_alone(e.result);
  return total.in_order(e.result);
}

}  // namespace halftone
