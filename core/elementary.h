// Elementary functions of doubles from sums, products, quotients and square roots alone, so that
// results have the same bits with every compiler, C library and CPU. (The C library chooses among
// several versions by the CPU, and they differ in the last bit now and then.) Errors are below two
// and a half units in the last place; special cases are those of the C library.
// tests/core/elementary_test.cpp measures both.
#pragma once

namespace halftone::elementary {

double exp(double x);
double expm1(double x);
double log(double x);
double log1p(double x);
double log2(double x);
double log10(double x);
double tanh(double x);
double erf(double x);
double sin(double x);
double cos(double x);
double pow(double x, double y);

}  // namespace halftone::elementary
