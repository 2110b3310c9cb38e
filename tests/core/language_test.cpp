// Lists of types, at compile time and visited, and the names of cast classes.
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

namespace halftone::test::type_list_test {
namespace {
using Some = TypeList<int, char, double>;
template <class T> struct Box {};

static_assert(Some::size == 3 && TypeList<>::size == 0);
static_assert(std::same_as<Concat<TypeList<int>, TypeList<>, TypeList<char, double>>, Some>);
static_assert(std::same_as<Wrap<Box, TypeList<int, char>>, TypeList<Box<int>, Box<char>>>);
static_assert(is_in_list<char, Some> && !is_in_list<float, Some> && !is_in_list<int, TypeList<>>);
static_assert(index_of<int, Some> == 0 && index_of<double, Some> == 2 &&
              index_of<float, Some> == -1);
}  // namespace

TEST_CASE("visiting a list of types") {
  std::vector<std::size_t> sizes;
  for_each_type(Some{}, [&]<class T>() { sizes.push_back(sizeof(T)); });
  CHECK(sizes == std::vector<std::size_t>{4, 1, 8});
  for (int index = -1; index <= 3; ++index) {
    std::size_t seen = 0;
    const bool there = visit_index(Some{}, index, [&]<class T>() { seen = sizeof(T); });
    CHECK(there == (index >= 0 && index < 3));
    CHECK(seen == (there ? sizes[std::size_t(index)] : 0));
  }
}

TEST_CASE("names of cast classes") {
  CHECK(name(CastClass::low_precision) == "low_precision");
  CHECK(name(CastClass::full_precision) == "full_precision");
  CHECK(name(CastClass::widest_input) == "widest_input");
  CHECK(name(CastClass::as_is) == "as_is");
  CHECK(name(CastClass::banned) == "banned");
}

}  // namespace halftone::test::type_list_test

// Slots: a scope fills one, an inner scope fills or empties it, and the earlier value is restored.

namespace halftone::test::thread_slot_test {
namespace {

struct Listener {};
using ListenerSlot = Slot<const Listener*>;
using SharedSlot = Slot<std::shared_ptr<Listener>>;

TEST_CASE("a scope fills a slot, an inner one replaces or empties it, and both restore it") {
  const Listener outer, inner;
  CHECK(ListenerSlot::current() == nullptr);
  {
    const ListenerSlot::Scope filled(&outer);
    CHECK(ListenerSlot::current() == &outer);
    {
      const ListenerSlot::Scope replaced(&inner);
      CHECK(ListenerSlot::current() == &inner);
      const ListenerSlot::Scope emptied(nullptr);
      CHECK(ListenerSlot::current() == nullptr);
    }
    CHECK(ListenerSlot::current() == &outer);
  }
  CHECK(ListenerSlot::current() == nullptr);
}

TEST_CASE("a scope restores after an exception, and holds a shared value until then") {
  auto listener = std::make_shared<Listener>();
  const std::weak_ptr<Listener> watched = listener;
  try {
    const SharedSlot::Scope filled(std::move(listener));
    CHECK(SharedSlot::current() == watched.lock());
    throw std::runtime_error("");
  } catch (const std::runtime_error&) {}
  CHECK(SharedSlot::current() == nullptr);
  CHECK(watched.expired());
}

TEST_CASE("other threads have their own slots, and a value may stay") {
  const Listener listener;
  {
    ListenerSlot::Scope filled(&listener);
    bool empty_there = false;
    std::thread([&] { empty_there = ListenerSlot::current() == nullptr; }).join();
    CHECK(empty_there);
    filled.stay();
  }
  CHECK(ListenerSlot::current() == &listener);
  ListenerSlot::Scope emptied(nullptr);
  emptied.stay();  // the listener ends here
  CHECK(ListenerSlot::current() == nullptr);
}

TEST_CASE("scopes may end in any order: the value is that of the innermost one left") {
  const auto memory = [](MemoryUse use) { return std::make_unique<MemoryScope>(use); };
  const MemoryUse outside = MemoryScope::current();
  auto a = memory(MemoryUse::input), b = memory(MemoryUse::gradient),
       c = memory(MemoryUse::workspace);
  b.reset();
  CHECK(MemoryScope::current() == MemoryUse::workspace);
  a.reset();
  CHECK(MemoryScope::current() == MemoryUse::workspace);
  auto d = memory(MemoryUse::parameter);
  c.reset();
  CHECK(MemoryScope::current() == MemoryUse::parameter);
  d.reset();
  CHECK(MemoryScope::current() == outside);

  auto off = std::make_unique<NoGrad>();
  auto on = std::make_unique<EnableGrad>();
  auto off_again = std::make_unique<NoGrad>();
  off.reset();
  CHECK_FALSE(grad_enabled());
  off_again.reset();
  CHECK(grad_enabled());
  on.reset();
  CHECK(grad_enabled());

  auto log = std::make_unique<amp::PrecisionLog>(), inner = std::make_unique<amp::PrecisionLog>();
  log.reset();
  CHECK(amp::PrecisionLog::active() == inner.get());
  inner.reset();
  CHECK(amp::PrecisionLog::active() == nullptr);
}

}  // namespace
}  // namespace halftone::test::thread_slot_test
