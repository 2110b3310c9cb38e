// <immintrin.h> without false warnings: some intrinsics of g++ 12 begin with a value that is
// undefined on purpose (__Y), and the compiler warns wherever they are inlined (GCC bug 105593,
// fixed in GCC 13).
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
