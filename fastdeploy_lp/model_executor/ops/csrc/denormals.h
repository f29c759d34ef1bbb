// Denormal floats as zeros.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

// While it exists, denormal inputs and results of this thread's arithmetic are zeros, as matrix units always have it.
class DenormalsAreZero {
   public:
    explicit DenormalsAreZero(bool wanted) : wanted_(wanted) {
#if defined(__SSE__)
        before_ = _mm_getcsr();
        if (wanted_) _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero);
#endif
    }
    ~DenormalsAreZero() {
#if defined(__SSE__)
        if (wanted_) _mm_setcsr(before_);
#endif
    }
    DenormalsAreZero(const DenormalsAreZero&) = delete;
    DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

   private:
    static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;

    bool wanted_;
    unsigned before_ = 0;
};
