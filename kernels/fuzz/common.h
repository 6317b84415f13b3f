// What the programs share: numbers drawn, what has to hold, memory that ends where it should, and the time.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <vector>

inline uint64_t state = 1;

inline uint32_t draw() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

inline uint32_t draw(uint32_t below) { return draw() % below; }

inline void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "FAILED: %s\n", what);
  abort();
}

// Memory of that size and no more, so that the sanitizer sees what lies beyond.
template <typename T>
struct Exact {
  explicit Exact(size_t size) : size(size), memory(new T[size]) {}
  explicit Exact(const std::vector<T>& from) : Exact(from.size()) { std::copy(from.begin(), from.end(), memory.get()); }
  Exact(const T* from, size_t count) : Exact(count) { std::copy(from, from + count, memory.get()); }
  T* get() const { return memory.get(); }
  std::vector<T> all() const { return {memory.get(), memory.get() + size}; }
  size_t size;
  std::unique_ptr<T[]> memory;
};

// Runs `one` for the seconds and with the random numbers that the last two arguments say.
template <typename One>
int run_for(int count, char** arguments, int wanted, const char* what, const One& one) {
  require(count == wanted, "arguments: ... SECONDS SEED");
  state = strtoull(arguments[wanted - 1], nullptr, 10) * 2 + 1;
  const double seconds = atof(arguments[wanted - 2]);
  timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  long inputs = 0;
  do {
    one();
    ++inputs;
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (static_cast<double>(now.tv_sec - begin.tv_sec) < seconds);
  printf("%ld %s\n", inputs, what);
  return 0;
}
