// Samples of the reductions. One walker groups the input's elements by their result; the oracle
// computes the result of a group.
#pragma once

#include <algorithm>
#include <numeric>

#include "ops/samples_case.h"

namespace halftone::test {

/// The dimensions to reduce, and a name; `length` elements are reduced to one result.
struct Over {
  std::string name;
  Shape shape;
  Dims dims;
  bool keep = false;

  std::vector<bool> reduced() const {
    std::vector<bool> marks(std::size_t(shape.rank()), dims.empty());
    for (int64_t d : dims)
      if (shape.rank() > 0) marks[std::size_t(d < 0 ? d + shape.rank() : d)] = true;
    return marks;
  }
  Dims result_index(const Dims& i) const {
    Dims result;
    for (int d = 0; d < shape.rank(); ++d) {
      if (!reduced()[std::size_t(d)]) result.push_back(i[d]);
      else if (keep) result.push_back(0);
    }
    return result;
  }
  Shape result_shape() const {
    Shape result;
    for (int d = 0; d < shape.rank(); ++d) {
      if (!reduced()[std::size_t(d)]) result.push_back(shape[d]);
      else if (keep) result.push_back(1);
    }
    return result;
  }
  int64_t length() const {
    return numel_of(shape) / std::max<int64_t>(1, numel_of(result_shape()));
  }
};

inline std::vector<Over> every_kind_of_dims() {
  return {{"everything", {3, 4, 5}, {}},
          {"everything, kept", {3, 4}, {}, true},
          {"rows", {4, 9}, {1}},
          {"columns", {9, 4}, {0}},
          {"last of three, kept", {2, 3, 5}, {-1}, true},
          {"middle", {3, 5, 2}, {1}},
          {"first and last", {3, 4, 5}, {0, -1}},
          {"images of channels", {2, 3, 4, 5}, {0, 2, 3}},
          {"spatial, kept", {2, 3, 4, 4}, {2, 3}, true},
          {"size of one", {4, 1}, {1}},
          {"named one by one", {2, 3}, {1, 0}},
          {"a scalar", {}, {}}};
}

/// y[group] = of(the group's elements, in row-major order).
inline Array reduced_by(const Over& over, const Array& x,
                        const std::function<double(const Values&)>& of) {
  Array result(over.result_shape());
  std::vector<Values> groups(result.values.size());
  each_index(x.shape,
             [&](const Dims& i) { groups[result.place(over.result_index(i))].push_back(x[i]); });
  for (std::size_t g = 0; g < groups.size(); ++g) result.values[g] = of(groups[g]);
  return result;
}

inline double total(const Values& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
inline double average(const Values& v) { return total(v) / double(v.size()); }
inline double spread(const Values& v, double correction) {
  double squares = 0;
  for (double x : v) squares += (x - average(v)) * (x - average(v));
  return squares / (double(v.size()) - correction);
}
inline double largest(const Values& v) { return *std::max_element(v.begin(), v.end()); }
inline double smallest(const Values& v) { return *std::min_element(v.begin(), v.end()); }
inline double product_of_all(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>{});
}
inline double length_of(const Values& v) {
  double squares = 0;
  for (double x : v) squares += x * x;
  return std::sqrt(squares);
}

using Reducer = std::function<Tensor(const Tensor&, const Dims&, bool)>;

inline Case reduction(const Over& over, const Reducer& call,
                      const std::function<double(const Values&)>& of, bool no_ties = false) {
  return {.name = over.name,
          .inputs = {{.shape = over.shape, .distinct = no_ties}},
          .call = [=](const Tensors& in) { return call(in[0], over.dims, over.keep); },
          .oracle = [=](const Arrays& in) { return reduced_by(over, in[0], of); },
          .reduced = over.length(),
          .condition = 2};
}

inline std::vector<Case> reductions(const Reducer& call,
                                    const std::function<double(const Values&)>& of,
                                    bool no_ties = false) {
  std::vector<Case> cases;
  for (const Over& over : every_kind_of_dims()) cases.push_back(reduction(over, call, of, no_ties));
  return cases;
}

/// The same of integers, exact in `output`.
inline Case of_integers(const Reducer& call, const std::function<double(const Values&)>& of,
                        DType output = i64) {
  Case test = reduction({"integers", {3, 4}, {1}}, call, of);
  test.inputs[0] = integers({3, 4}, {7, -2, 5, 0, 1, 1, -1, 300, -4, -4, -70000, 3});
  test.output = output, test.gradient = false;
  return test;
}

inline ErrorCase dims_error(const std::string& op, const Reducer& call) {
  return error<ShapeError>("[" + op + "] dimension 2 is out of range for rank 2. Use -2 to 1.",
                           [call] {
                             call(ones({2, 3}), {2}, false);
                           });
}

template <> struct Samples<Sum> {
  static OpSamples make() {
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) { return sum(x, d, keep); };
    std::vector<Case> cases = reductions(call, total);
    for (const Over& over :
         {Over{"long rows", {3, 1500}, {1}}, Over{"long columns", {1500, 3}, {0}},
          Over{"of nothing", {0, 3}, {0}}, Over{"no results", {0, 3}, {1}}})
      cases.push_back(reduction(over, call, total));
    cases.push_back(of_integers(call, total));
    return {.cases = cases, .errors = {dims_error("sum", call)}, .any_dtype = true};
  }
};

template <> struct Samples<Mean> {
  static OpSamples make() {
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) { return mean(x, d, keep); };
    std::vector<Case> cases = reductions(call, average);
    cases.push_back(reduction({"long rows", {3, 1500}, {1}}, call, average));
    return {.cases = cases, .errors = {dims_error("mean", call)}};
  }
};

template <> struct Samples<Var> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const double correction : {1.0, 0.0}) {
      const Reducer call = [=](const Tensor& x, const Dims& d, bool keep) {
        return var(x, d, correction, keep);
      };
      for (const Over& over : every_kind_of_dims()) {
        if (over.length() < 2) continue;
        Case test = reduction(over, call, [=](const Values& v) { return spread(v, correction); });
        test.name += correction == 0 ? ", biased" : "";
        cases.push_back(test);
      }
    }
    Over far{"far from zero", {4, 60}, {1}};
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) {
      return var(x, d, 1, keep);
    };
    Case test = reduction(far, call, [](const Values& v) { return spread(v, 1); });
    test.inputs[0].domain = {14, 18};
    test.condition = 16;  // mean / spread
    cases.push_back(test);
    return {.cases = cases, .errors = {dims_error("var", call)}};
  }
};

template <> struct Samples<Max> {
  static OpSamples make() {
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) { return max(x, d, keep); };
    std::vector<Case> cases = reductions(call, largest, true);
    cases.push_back(of_integers(call, largest));
    cases.push_back(reduction({"of no rows", {0, 3}, {1}}, call, largest));
    return {.cases = cases,
            .errors = {dims_error("max", call),
                       REFUSES(ShapeError, "[max] [0, 2] f32 has no elements. Reduce at least one.",
                               max(ones({0, 2})))},
            .any_dtype = true};
  }
};

template <> struct Samples<Min> {
  static OpSamples make() {
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) { return min(x, d, keep); };
    std::vector<Case> cases = reductions(call, smallest, true);
    cases.push_back(of_integers(call, smallest));
    cases.push_back(reduction({"of no rows", {0, 3}, {1}}, call, smallest));
    return {.cases = cases,
            .errors = {dims_error("min", call),
                       REFUSES(ShapeError, "[min] [0, 2] f32 has no elements. Reduce at least one.",
                               min(ones({0, 2})))},
            .any_dtype = true};
  }
};

template <> struct Samples<Prod> {
  static OpSamples make() {
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) { return prod(x, d, keep); };
    std::vector<Case> cases = reductions(call, product_of_all);
    for (Case& test : cases) test.inputs[0].domain = {0.5, 1.5};
    cases.push_back(reduction({"both signs", {4, 5}, {1}}, call, product_of_all));
    cases.push_back(reduction({"of nothing", {0, 3}, {0}}, call, product_of_all));
    Case zeros = reduction({"no, one and two zeros", {3, 3}, {1}}, call, product_of_all);
    zeros.inputs[0].given = {2, -3, 0.5, 2, 0, 1.5, 0, 4, 0};
    cases.push_back(zeros);
    cases.push_back(of_integers(call, product_of_all));
    return {.cases = cases, .errors = {dims_error("prod", call)}, .any_dtype = true};
  }
};

template <> struct Samples<Norm> {
  static OpSamples make() {
    const Reducer call = [](const Tensor& x, const Dims& d, bool keep) { return norm(x, d, keep); };
    std::vector<Case> cases = reductions(call, length_of);
    for (Case& test : cases) test.inputs[0].avoid = {0};
    return {.cases = cases, .errors = {dims_error("norm", call)}};
  }
};

/// argmax and argmin.
struct PlaceSamples {
  std::string name;
  Tensor (*call)(const Tensor&, std::optional<int>, bool);
  bool largest;

  Case along(std::string title, const Shape& shape, int dim, bool keep = false) const {
    const Over over{std::move(title), shape, shape.rank() ? Dims{dim} : Dims{}, keep};
    Case test = reduction(
        over,
        [call = call](const Tensor& x, const Dims& d, bool kept) {
          return call(x, d.empty() ? -1 : int(d[0]), kept);
        },
        [most = largest](const Values& v) {
          return double(
              (most ? std::max_element(v.begin(), v.end()) : std::min_element(v.begin(), v.end())) -
              v.begin());
        });
    test.output = i64, test.gradient = false;
    test.inputs[0] = {.shape = shape, .kind = InputKind::constant, .distinct = true};
    return test;
  }
  OpSamples make() const {
    Case ties = along("the first of equals", {2, 4}, 1), of_whole = along("integers", {2, 4}, 1);
    ties.inputs[0].distinct = false, ties.inputs[0].given = {1, 3, 3, 0, -1, -1, -1, -1};
    of_whole.inputs[0] = integers({2, 4}, {1, 3, 3, 0, -1, -1, -70000, 70000});
    const auto fails = [call = call](const Shape& shape, int dim) {
      return [=] { call(ones(shape), dim, false); };
    };
    return {
        .cases = {along("last", {5, 7}, -1), along("first", {7, 5}, 0),
                  along("middle, kept", {2, 6, 3}, 1, true), along("a scalar", {}, 0), ties,
                  along("of no rows", {0, 3}, 1), of_whole},
        .errors = {error<ShapeError>("[" + name + "] [0] f32 has no elements. Reduce at least one.",
                                     fails({0}, -1)),
                   error<ShapeError>("[" + name +
                                         "] dimension 1 is out of range for rank 1. Use -1 to "
                                         "0.",
                                     fails({3}, 1))},
        .any_dtype = true};
  }
};
template <> struct Samples<ArgMax> {
  static OpSamples make() { return PlaceSamples{"argmax", &argmax, true}.make(); }
};
template <> struct Samples<ArgMin> {
  static OpSamples make() { return PlaceSamples{"argmin", &argmin, false}.make(); }
};

/// any and all, of bools and of numbers of which some are 0.
struct TruthSamples {
  std::string name;
  Tensor (*call)(const Tensor&, const Dims&, bool);
  bool any;

  double of(const Values& v) const {
    const auto is_true = [](double x) { return x != 0; };
    return any ? std::any_of(v.begin(), v.end(), is_true)
               : std::all_of(v.begin(), v.end(), is_true);
  }
  Case over(const Over& which, InputKind kind) const {
    Case test = reduction(
        which,
        [call = call](const Tensor& x, const Dims& d, bool keep) { return call(x, d, keep); },
        [self = *this](const Values& v) { return self.of(v); });
    test.output = boolean, test.gradient = false;
    test.name += kind == InputKind::condition ? ", bools" : "";
    test.inputs[0].kind = kind;
    Values values(std::size_t(numel_of(which.shape)));
    Draw draw(values.size());
    const double usual = any ? 0 : 2, rare = any ? -0.5 : 0;
    for (double& value : values) value = draw.word() % 4 == 0 ? rare : usual;
    test.inputs[0].given = values;
    return test;
  }
  OpSamples make() const {
    std::vector<Case> cases;
    for (const Over& which : every_kind_of_dims())
      for (const InputKind kind : {InputKind::constant, InputKind::condition})
        cases.push_back(over(which, kind));
    cases.push_back(over({"of nothing", {0, 3}, {0}}, InputKind::constant));
    cases.push_back(over({"no results", {0, 3}, {1}}, InputKind::constant));
    return {.cases = cases,
            .errors = {dims_error(name, [call = call](const Tensor& x, const Dims& d,
                                                      bool keep) { return call(x, d, keep); })},
            .any_dtype = true};
  }
};
template <> struct Samples<Any> {
  static OpSamples make() { return TruthSamples{"any", &any, true}.make(); }
};
template <> struct Samples<All> {
  static OpSamples make() { return TruthSamples{"all", &all, false}.make(); }
};

template <> struct Samples<CumulativeSum> {
  static Case along(std::string name, const Shape& shape, int dim) {
    const int d = shape.rank() == 0 ? 0 : (dim + shape.rank()) % shape.rank();
    return {.name = std::move(name),
            .inputs = {{.shape = shape}},
            .call = [dim](const Tensors& in) { return cumsum(in[0], dim); },
            .oracle =
                [d](const Arrays& in) {
                  return array_of(in[0].shape, [&](Dims i) {
                    if (i.rank() == 0) return in[0][i];
                    double sum = 0;
                    for (int64_t last = i[d], k = 0; k <= last; ++k) i[d] = k, sum += in[0][i];
                    return sum;
                  });
                },
            .reduced = shape.rank() ? shape[d] : 1};
  }
  static OpSamples make() {
    Case of_whole = along("integers", {2, 3}, 1);
    of_whole.inputs[0] = integers({2, 3}, {5, -7, 70000, 1, 1, 1});
    of_whole.output = i64, of_whole.gradient = false;
    return {.cases = {along("last", {3, 9}, -1), along("first", {9, 3}, 0),
                      along("middle", {2, 5, 3}, 1), along("a scalar", {}, 0),
                      along("long", {2, 700}, 1), along("empty", {0, 3}, 0), of_whole},
            .errors = {REFUSES(ShapeError,
                               "[cumsum] dimension 3 is out of range for rank 2. Use -2 to 1.",
                               cumsum(ones({2, 3}), 3))},
            .any_dtype = true};
  }
};

template <> struct Samples<CumulativeProduct> {
  static Case along(std::string name, Input input, int dim) {
    const int d = input.shape.rank() == 0 ? 0 : (dim + input.shape.rank()) % input.shape.rank();
    return {.name = std::move(name),
            .inputs = {std::move(input)},
            .call = [dim](const Tensors& in) { return cumprod(in[0], dim); },
            .oracle =
                [d](const Arrays& in) {
                  return array_of(in[0].shape, [&](Dims i) {
                    if (i.rank() == 0) return in[0][i];
                    double product = 1;
                    for (int64_t last = i[d], k = 0; k <= last; ++k) i[d] = k, product *= in[0][i];
                    return product;
                  });
                }};
  }
  static OpSamples make() {
    Case of_whole = along("integers", integers({2, 3}, {5, -7, 70000, 1, 0, 1}), 1);
    of_whole.output = i64, of_whole.gradient = false;
    return {.cases = {along("last", {.shape = {3, 9}}, -1), along("first", {.shape = {9, 3}}, 0),
                      along("middle", {.shape = {2, 5, 3}}, 1), along("a scalar", {}, 0),
                      along("empty", {.shape = {0, 3}}, 0), of_whole},
            .errors = {REFUSES(ShapeError,
                               "[cumprod] dimension 3 is out of range for rank 2. Use -2 to 1.",
                               cumprod(ones({2, 3}), 3))},
            .any_dtype = true};
  }
};

}  // namespace halftone::test
