// The frame of every program with flags: parse, run, and turn mistakes into a message and exit
// code 1. A reader of its output that goes away (`| head`) does not end it.
#pragma once

#include <csignal>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <halftone/core/error.h>

#include "output.h"

/// --device, for programs that train.
inline void add_device_flag(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "cpu, cuda or cuda:N")->capture_default_str();
}

/// run() is called after the flags were read.
template <class Run> int run_program(CLI::App& app, int argc, char** argv, const Run& run) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    app.parse(argc, argv);
    run();
    return after_output();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;  // prints help or the mistake
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
