// How functions of the C interface fail: they return 0, and say why when asked.
#pragma once

#include <exception>
#include <string>

#if defined(_WIN32)
#define SV_API extern "C" __declspec(dllexport)
#else
#define SV_API extern "C" __attribute__((visibility("default")))
#endif

namespace sottovoce {

// Why the last call of this thread failed.
inline std::string& last_error() {
    thread_local std::string error;
    return error;
}

template <class Work>
auto guarded(const Work& work) -> decltype(work()) {
    try {
        return work();
    } catch (const std::exception& error) {
        last_error() = error.what();
    } catch (...) {
        last_error() = "unknown error";
    }
    return decltype(work()){};
}

}  // namespace sottovoce
