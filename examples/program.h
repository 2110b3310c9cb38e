// The frame of every program with flags: parse, run, and turn mistakes into a message and exit
// code 1. A reader of its output that goes away (`| head`) does not end it. What parses (CLI11) is
// in program.cpp, so that a lesson compiles in the time that the lesson takes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// What a flag accepts; everything, if nothing is said. Each returns the flag again.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}
  const Flag& within(int low, int high) const;
  const Flag& within(double low, double high) const;
  const Flag& positive() const;
  const Flag& not_negative() const;
  const Flag& one_of(const std::vector<std::string>& names) const;
  const Flag& existing_file() const;

 private:
  CLI::Option* option_;
};

/// What the programs that train on Fashion-MNIST are told.
struct TrainingFlags {
  std::string data{}, device = "cpu";
  int64_t epochs = 3, batch = 128, limit = 0;  // limit: of each split's images; 0: all
  double lr = 0;                               // 0: what suits the optimizer
  uint64_t seed = 0;
  int threads = 0;  // 0: as many as OpenMP likes
};

class Program {
 public:
  explicit Program(const std::string& about);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// A flag (or, without dashes, an argument) and where its value goes; what is there already is
  /// the default, which --help shows.
  Flag flag(const std::string& name, std::string& to, const std::string& help = "");
  Flag flag(const std::string& name, std::vector<std::string>& to, const std::string& help = "");
  Flag flag(const std::string& name, int& to, const std::string& help = "");
  Flag flag(const std::string& name, int64_t& to, const std::string& help = "");
  Flag flag(const std::string& name, uint64_t& to, const std::string& help = "");
  Flag flag(const std::string& name, double& to, const std::string& help = "");
  /// A flag that takes no value.
  Flag flag(const std::string& name, bool& to, const std::string& help = "");
  /// The same for several values, separated by commas.
  Flag list(const std::string& name, std::vector<std::string>& to, const std::string& help = "");
  /// --device, for programs that train.
  void device(std::string& to);
  /// All of them; run() sets the number of threads.
  void training(TrainingFlags& to);

  /// Whether a flag was given; within body.
  bool given(const std::string& name) const;
  /// body() after the flags were read; the exit code.
  int run(int argc, char** argv, const std::function<void()>& body);

 private:
  std::unique_ptr<CLI::App> app_;
  const TrainingFlags* training_ = nullptr;
};
