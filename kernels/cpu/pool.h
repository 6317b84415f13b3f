// Threads that share out the items of a call.
#pragma once

#include <functional>

namespace gpupipe {

// Calls work(item) for each item from 0 to count - 1, on up to `threads` threads, this one among them; returns when all
// are done. Threads are started when they are first needed and kept. Several calls may run at once. Safe after a fork.
void for_each(int count, int threads, const std::function<void(int)>& work);

}  // namespace gpupipe
