// <immintrin.h> without false alarms: some intrinsics of g++ 12 start from a value that they leave
// undefined on purpose (__Y), and the compiler warns of it wherever they are inlined (GCC bug
// 105593, fixed in GCC 13).
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
