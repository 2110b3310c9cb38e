// Runs the groups of a task, and turns every way to fail into a verdict: a wrong result, an
// exception, a crash, an endless loop.
//
//   PROGRAM TASK SECONDS LESSONS      the task's name, its limit of CPU time, the path of
//   lessons.txt
//
// Exit codes: 0 passed, 1 failed.
#include "grade.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <sys/time.h>
#include <unistd.h>

namespace grade {
namespace {

char described[2000] = "";
const char *task = "", *current_title = "", *current_topic = "", *current_why = "";
const char* lessons = "";
int passed = 0, seconds = 5;

struct Failed {};

/// The pages of a topic, from lessons.txt: lines "topic | pages".
std::string pages_of(const std::string& topic) {
  std::ifstream file(lessons);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(topic + " |")) return line.substr(topic.size() + 3);
  return "examples/exercises/README.md (lessons.txt has no topic " + topic + ")";
}

/// Prints a label and a text, which is cut at spaces into lines of at most 100 columns. The text
/// may have several lines itself.
void print(const char* label, const std::string& text) {
  constexpr std::size_t width = 88;
  for (std::size_t begin = 0; begin < text.size() || *label;) {
    std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin > width) {
      end = text.rfind(' ', begin + width);
      if (end == std::string::npos || end <= begin) end = begin + width;
    }
    std::printf("  %-9s %s\n", label, text.substr(begin, end - begin).c_str());
    label = "", begin = end + (end < text.size() && (text[end] == ' ' || text[end] == '\n'));
  }
}

void verdict(const std::string& expected, const std::string& got) {
  std::printf("  FAILED    %s\n", current_title);
  if (*described) print("input", described);
  if (!expected.empty()) print("expected", expected);
  print("got", got);
  if (!expected.empty()) print("why", current_why);
  print("read", pages_of(current_topic));
  std::printf("%s: FAILED. %d test%s passed before this one.\n", task, passed,
              passed == 1 ? "" : "s");
  std::fflush(stdout);
}

void on_signal(int number) {
  std::signal(number, SIG_DFL);
  if (number == SIGPROF || number == SIGALRM)
    verdict("", "no result within the time limit of " + std::to_string(seconds) +
                    " s. Look for an endless loop, or for a loop that is much too long.");
  else if (number == SIGFPE) verdict("", "a crash: an integer was divided by zero.");
  else
    verdict("",
            "a crash: an index out of range, a pointer to nothing, undefined arithmetic, or "
            "endless recursion.");
  _exit(1);
}

void handle_signals() {
  static char stack[1 << 16];  // endless recursion leaves no other
  const stack_t other{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  // Address sanitizer reports SIGSEGV itself, with the line, and then calls abort().
  for (const int number : {SIGABRT, SIGPROF, SIGALRM, SIGILL}) sigaction(number, &action, nullptr);
#ifndef __SANITIZE_ADDRESS__
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(number, &action, nullptr);
#endif
  const itimerval limit{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  alarm(unsigned(seconds + 8));  // for code that waits and uses no CPU time
}

}  // namespace

void group(const char* title, const char* topic, const char* why, void (*run)()) {
  current_title = title, current_topic = topic, current_why = why;
  described[0] = 0;
  try {
    run();
  } catch (const Failed&) { throw; } catch (const std::exception& error) {
    if (std::strstr(error.what(), "is not written yet")) {
      print("NOT YET", error.what());
      print("read", "the comment in task.h. Before that: " + pages_of(topic));
      std::printf("%s: FAILED, not written yet\n", task);
    } else {
      verdict("", std::string("an exception: ") + error.what());
    }
    throw Failed{};
  } catch (...) {
    verdict("", "an exception that is not a std::exception");
    throw Failed{};
  }
  ++passed;
  std::printf("  ok        %s\n", title);
  std::fflush(stdout);
}

void input(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(described, sizeof described, format, arguments);
  va_end(arguments);
}

void fail(const std::string& expected, const std::string& got) {
  verdict(expected, got);
  throw Failed{};
}

std::string shown(float x) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g (bits 0x%08x)", double(x), std::bit_cast<uint32_t>(x));
  return text;
}
std::string shown(double x) {
  char text[64];
  std::snprintf(text, sizeof text, "%.10g", x);
  return text;
}

namespace {
std::string named(const char* what, const std::string& value) {
  return *what ? std::string(what) + " = " + value : value;
}
}  // namespace

void same(float got, float expected, const char* what) {
  const bool equal = std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(expected);
  if (!equal && !(std::isnan(got) && std::isnan(expected)))
    fail(named(what, shown(expected)), named(what, shown(got)));
}
void same_bits(uint64_t got, uint64_t expected, int digits, const char* what) {
  const auto hex = [digits](uint64_t x) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%0*llx", digits, static_cast<unsigned long long>(x));
    return std::string(text);
  };
  if (got != expected) fail(named(what, hex(expected)), named(what, hex(got)));
}
void same_integer(int64_t got, int64_t expected, const char* what) {
  if (got != expected)
    fail(named(what, std::to_string(expected)), named(what, std::to_string(got)));
}
void same(bool got, bool expected, const char* what) {
  if (got != expected)
    fail(named(what, expected ? "true" : "false"), named(what, got ? "true" : "false"));
}
void near(double got, double expected, double tolerance, const char* what) {
  if (std::isnan(got) && std::isnan(expected)) return;
  if (got == expected || std::fabs(got - expected) <= tolerance) return;
  fail(named(what, shown(expected)) + ", give or take " + shown(tolerance),
       named(what, shown(got)));
}
void holds(bool ok, const std::string& expected, const std::string& got) {
  if (!ok) fail(expected, got);
}
void throws(void (*run)(), const char* expected) {
  try {
    run();
  } catch (const Failed&) { throw; } catch (const std::exception& error) {
    if (std::strstr(error.what(), "is not written yet")) throw;
    return;
  }
  fail(std::string("an exception: ") + expected, "no exception");
}

}  // namespace grade

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s TASK SECONDS LESSONS\n", argv[0]);
    return 2;
  }
  grade::task = argv[1], grade::seconds = std::atoi(argv[2]), grade::lessons = argv[3];
  grade::handle_signals();
  try {
    grade::tests();
  } catch (const grade::Failed&) { return 1; }
  std::printf("%s: PASSED, %d tests\n", grade::task, grade::passed);
}
