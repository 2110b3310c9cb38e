// The binding of the page (web/binding.cpp) as a native program: reads requests from standard
// input, a line each, and prints the answers.
#include <iostream>
#include <string>

extern "C" const char* halftone_call(const char* request);

int main() {
  for (std::string line; std::getline(std::cin, line);)
    std::cout << halftone_call(line.c_str()) << std::endl;
}
