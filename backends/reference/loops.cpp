// convert_run(): converts every dtype to every other in one loop. It is compiled once here, so
// kernels need no instantiation per dtype.
#include <halftone/backends/reference/loops.h>

#include <cstring>

namespace halftone::reference {

namespace {

template <class To, class From>
void convert_elements(int64_t count, const From* from, int64_t from_step, To* to, int64_t to_step) {
  if (from_step == 1 && to_step == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = convert<To>(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_step] = convert<To>(from[i * from_step]);
  }
}

}  // namespace

void convert_run(int64_t count, Run from, Run to) {
  if (count <= 0) return;
  if (from.dtype == to.dtype && from.step == 1 && to.step == 1) {
    std::memmove(to.data, from.data, std::size_t(count * size_of(to.dtype)));
    return;
  }
  visit_any(from.dtype, [&]<class From>() {
    visit_any(to.dtype, [&]<class To>() {
      convert_elements(count, reinterpret_cast<const From*>(from.data), from.step,
                       reinterpret_cast<To*>(to.data), to.step);
    });
  });
}

void widen(const Tensor& x, int64_t offset, int64_t count, double* values) {
  parallel_pieces(count, grain_length, [&](int64_t begin, int64_t end) {
    load(x, offset + begin, end - begin, values + begin);
  });
}

void narrow(const double* values, int64_t count, const Tensor& y, int64_t offset) {
  parallel_pieces(count, grain_length, [&](int64_t begin, int64_t end) {
    store(values + begin, end - begin, y, offset + begin);
  });
}

}  // namespace halftone::reference
