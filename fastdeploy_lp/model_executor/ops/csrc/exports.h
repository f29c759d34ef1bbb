// The library's interface to Python: exported C functions; everything else is hidden.
#pragma once

#define FDLP_EXPORT extern "C" __attribute__((visibility("default")))
