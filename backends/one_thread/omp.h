// The OpenMP functions that backends/ calls, for a compiler without OpenMP: it ignores the pragmas,
// so every region has one thread. Such a build adds this folder to the path of system headers, and
// compiles team.cpp of this folder in place of that of backends/.
#pragma once

inline int omp_get_thread_num() { return 0; }
inline int omp_get_num_threads() { return 1; }
inline int omp_get_max_threads() { return 1; }
inline int omp_in_parallel() { return 0; }
inline int omp_get_dynamic() { return 0; }
inline void omp_set_num_threads(int) {}
inline void omp_set_dynamic(int) {}
