// A stand-in for the Metal Shading Language: enough to run MLX's custom kernels on a CPU.
//
// Every thread of a threadgroup is a fiber. Threads of a SIMD group (32) meet at each SIMD
// operation, those of a threadgroup at each barrier. Only threads that meet at the same source
// line take part in an operation, as on the device, where inactive threads do not.
#pragma once
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <sys/mman.h>
#include <unistd.h>

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = unsigned long;

#define METAL_FUNC inline
#define MLX_MTL_PRAGMA_UNROLL
#define MLX_MTL_LOOP_UNROLL

// ---------------------------------------------------------------- small floats
namespace emu {

inline uint32_t bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
inline float unbits(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

struct Half {
  static float to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    if (e == 31) return unbits(sign | 0x7f800000 | (m << 13));
    if (e) return unbits(sign | ((e + 112) << 23) | (m << 13));
    float f = float(m) * 0x1p-24f;
    return sign ? -f : f;
  }
  static uint16_t from_float(float x) {
    uint32_t u = bits(x), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (a >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (a < 0x38800000) {  // subnormal
      float r = std::nearbyint(unbits(a) * 0x1p24f);
      return uint16_t(sign | uint32_t(r));
    }
    uint32_t m = a - 0x38000000, odd = (m >> 13) & 1;
    return uint16_t(sign | ((m + 0xfff + odd) >> 13));
  }
};
struct Brain {
  static float to_float(uint16_t h) { return unbits(uint32_t(h) << 16); }
  static uint16_t from_float(float x) {
    uint32_t u = bits(x);
    if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 64);
    return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
};

template <class F>
struct small {
  uint16_t v;
  small() = default;
  small(const small&) = default;
  small& operator=(const small&) = default;
  template <class A, std::enable_if_t<std::is_arithmetic_v<A>, int> = 0>
  constexpr small(A x) : v(0) { v = F::from_float(float(x)); }
  template <class G, std::enable_if_t<!std::is_same_v<F, G>, int> = 0>
  explicit small(small<G> x) : v(F::from_float(float(x))) {}
  // Implicitly only to float: ``c ? h : 0`` is then of this type, as in Metal.
  template <class A, std::enable_if_t<std::is_same_v<A, float>, int> = 0>
  operator A() const { return F::to_float(v); }
  template <class A, std::enable_if_t<std::is_arithmetic_v<A> && !std::is_same_v<A, float>, int> = 0>
  explicit operator A() const { return A(F::to_float(v)); }
};
template <class A> struct is_small : std::false_type {};
template <class F> struct is_small<small<F>> : std::true_type {};

// The type of an operation with a small float: integers take its type, floats win.
template <class A, class B> struct joint { using type = float; };
template <class F> struct joint<small<F>, small<F>> { using type = small<F>; };
template <class F, class B> struct joint<small<F>, B> {
  using type = std::conditional_t<std::is_integral_v<B>, small<F>, float>;
};
template <class A, class F> struct joint<A, small<F>> {
  using type = std::conditional_t<std::is_integral_v<A>, small<F>, float>;
};
template <class A, class B>
constexpr bool mixes = (is_small<A>::value || is_small<B>::value) &&
    (is_small<A>::value || std::is_arithmetic_v<A>) && (is_small<B>::value || std::is_arithmetic_v<B>);

#define EMU_OP(op)                                                                        \
  template <class A, class B, std::enable_if_t<mixes<A, B>, int> = 0>                     \
  inline typename joint<A, B>::type operator op(A a, B b) {                               \
    return typename joint<A, B>::type(float(a) op float(b));                              \
  }
EMU_OP(+) EMU_OP(-) EMU_OP(*) EMU_OP(/)
#undef EMU_OP
#define EMU_OP(op)                                                                        \
  template <class A, class B, std::enable_if_t<mixes<A, B>, int> = 0>                     \
  inline bool operator op(A a, B b) { return float(a) op float(b); }
EMU_OP(<) EMU_OP(>) EMU_OP(<=) EMU_OP(>=) EMU_OP(==) EMU_OP(!=)
#undef EMU_OP
#define EMU_OP(op)                                                                        \
  template <class F, class B> inline small<F>& operator op##=(small<F>& a, B b) {         \
    a = small<F>(float(a) op float(b)); return a;                                         \
  }
EMU_OP(+) EMU_OP(-) EMU_OP(*) EMU_OP(/)
#undef EMU_OP
template <class F> inline small<F> operator-(small<F> a) { a.v ^= 0x8000; return a; }
template <class F> inline small<F> operator+(small<F> a) { return a; }

template <class T> using scalar_only = std::enable_if_t<std::is_arithmetic_v<T> || is_small<T>::value, int>;

}  // namespace emu

using half = emu::small<emu::Half>;
using bfloat = emu::small<emu::Brain>;
using float16_t = half;
using bfloat16_t = bfloat;

// ---------------------------------------------------------------- vectors
template <class T, int N> struct vec;
#define EMU_VEC_COMMON(N)                                                                 \
  vec() = default;                                                                        \
  T& operator[](int i) { return (&x)[i]; }                                                \
  const T& operator[](int i) const { return (&x)[i]; }                                    \
  template <class A, emu::scalar_only<A> = 0> vec(A a) { for (int i = 0; i < N; ++i) (*this)[i] = T(a); } \
  template <class U> explicit vec(const vec<U, N>& o) { for (int i = 0; i < N; ++i) (*this)[i] = T(o[i]); }
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  EMU_VEC_COMMON(2)
  template <class A, class B> vec(A a, B b) : x(T(a)), y(T(b)) {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  EMU_VEC_COMMON(3)
  template <class A, class B, class C> vec(A a, B b, C c) : x(T(a)), y(T(b)), z(T(c)) {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  EMU_VEC_COMMON(4)
  template <class A, class B, class C, class D>
  vec(A a, B b, C c, D d) : x(T(a)), y(T(b)), z(T(c)), w(T(d)) {}
};
#define EMU_VOP(op)                                                                       \
  template <class T, int N> inline vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) { \
    vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = T(a[i] op b[i]); return r; }           \
  template <class T, int N, class A, emu::scalar_only<A> = 0>                             \
  inline vec<T, N> operator op(const vec<T, N>& a, A b) {                                 \
    vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = T(a[i] op T(b)); return r; }           \
  template <class T, int N, class A, emu::scalar_only<A> = 0>                             \
  inline vec<T, N> operator op(A a, const vec<T, N>& b) {                                 \
    vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = T(T(a) op b[i]); return r; }           \
  template <class T, int N, class A> inline vec<T, N>& operator op##=(vec<T, N>& a, const A& b) { \
    a = a op b; return a; }
EMU_VOP(+) EMU_VOP(-) EMU_VOP(*) EMU_VOP(/)
#undef EMU_VOP
template <class T, int N> inline vec<T, N> operator-(const vec<T, N>& a) {
  vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = -a[i]; return r; }
template <class T, int N> inline T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T s = T(0); for (int i = 0; i < N; ++i) s += a[i] * b[i]; return s; }

#define EMU_NAMES(T) using T##2 = vec<T, 2>; using T##3 = vec<T, 3>; using T##4 = vec<T, 4>;
EMU_NAMES(float) EMU_NAMES(half) EMU_NAMES(bfloat) EMU_NAMES(int) EMU_NAMES(uint) EMU_NAMES(short)
EMU_NAMES(ushort) EMU_NAMES(char) EMU_NAMES(uchar) EMU_NAMES(long) EMU_NAMES(ulong) EMU_NAMES(bool)
#undef EMU_NAMES

// ---------------------------------------------------------------- functions
#define EMU_F1(name)                                                                      \
  inline float name(float x) { return std::name(x); }                                     \
  template <class F> inline emu::small<F> name(emu::small<F> x) { return emu::small<F>(std::name(float(x))); } \
  template <class I, std::enable_if_t<std::is_integral_v<I> || std::is_same_v<I, double>, int> = 0>    \
  inline float name(I x) { return std::name(float(x)); }                                               \
  template <class T, int N> inline vec<T, N> name(const vec<T, N>& x) {                   \
    vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = name(x[i]); return r; }
#define EMU_F2(name)                                                                      \
  template <class A, class B> inline auto name(A a, B b) {                                \
    if constexpr (emu::is_small<A>::value && std::is_same_v<A, B>) return A(std::name(float(a), float(b))); \
    else return std::name(float(a), float(b)); }
namespace metal {
namespace functions {
EMU_F1(exp) EMU_F1(exp2) EMU_F1(log) EMU_F1(log2) EMU_F1(log10) EMU_F1(sqrt) EMU_F1(sin) EMU_F1(cos)
EMU_F1(tan) EMU_F1(tanh) EMU_F1(sinh) EMU_F1(cosh) EMU_F1(asin) EMU_F1(acos) EMU_F1(atan) EMU_F1(floor)
EMU_F1(ceil) EMU_F1(round) EMU_F1(trunc) EMU_F1(rint) EMU_F1(fabs)
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
template <class F> inline emu::small<F> rsqrt(emu::small<F> x) { return emu::small<F>(rsqrt(float(x))); }
template <class T, int N> inline vec<T, N> rsqrt(const vec<T, N>& x) {
  vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = rsqrt(x[i]); return r; }
inline float exp10(float x) { return std::pow(10.0f, x); }
EMU_F2(pow) EMU_F2(atan2) EMU_F2(fmod)
template <class T, int N> inline vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = T(std::fma(float(a[i]), float(b[i]), float(c[i]))); return r; }
template <class T, int N> inline vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = a[i] < b[i] ? b[i] : a[i]; return r; }
template <class T, int N> inline vec<T, N> min(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = b[i] < a[i] ? b[i] : a[i]; return r; }
template <class T, int N> inline vec<T, N> abs(const vec<T, N>& a) {
  vec<T, N> r; for (int i = 0; i < N; ++i) r[i] = T(std::fabs(float(a[i]))); return r; }
template <class A, class B, class C, std::enable_if_t<(std::is_arithmetic_v<A> || emu::is_small<A>::value) &&
    (std::is_arithmetic_v<B> || emu::is_small<B>::value), int> = 0> inline auto fma(A a, B b, C c) {
  if constexpr (emu::is_small<A>::value) return A(std::fma(float(a), float(b), float(c)));
  else return std::fma(float(a), float(b), float(c)); }
template <class A, emu::scalar_only<A> = 0> inline A abs(A x) {
  if constexpr (std::is_unsigned_v<A>) return x;
  else if constexpr (std::is_integral_v<A>) return x < 0 ? -x : x;
  else return A(std::fabs(float(x))); }
template <class A, class B, emu::scalar_only<A> = 0, emu::scalar_only<B> = 0> inline auto max(A a, B b) {
  using T = typename std::conditional_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                                        std::common_type<A, B>, emu::joint<A, B>>::type;
  if constexpr (std::is_floating_point_v<T> || emu::is_small<T>::value) return T(std::fmax(float(a), float(b)));
  else return T(a) < T(b) ? T(b) : T(a); }
template <class A, class B, emu::scalar_only<A> = 0, emu::scalar_only<B> = 0> inline auto min(A a, B b) {
  using T = typename std::conditional_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                                        std::common_type<A, B>, emu::joint<A, B>>::type;
  if constexpr (std::is_floating_point_v<T> || emu::is_small<T>::value) return T(std::fmin(float(a), float(b)));
  else return T(b) < T(a) ? T(b) : T(a); }
template <class A, class B> inline auto fmax(A a, B b) { return max(a, b); }
template <class A, class B> inline auto fmin(A a, B b) { return min(a, b); }
template <class A, class B, class C> inline auto clamp(A x, B lo, C hi) { return min(max(x, lo), hi); }
template <class A> inline A select(A a, A b, bool c) { return c ? b : a; }
template <class A> inline A sign(A x) { return A(float(x) > 0 ? 1 : float(x) < 0 ? -1 : 0); }
inline float fract(float x) { return x - std::floor(x); }
inline float ldexp(float x, int e) { return std::ldexp(x, e); }
template <class A, class B> inline float mix(A a, A b, B t) { return float(a) + (float(b) - float(a)) * float(t); }
template <class A> inline bool isnan(A x) { return std::isnan(float(x)); }
template <class A> inline bool isinf(A x) { return std::isinf(float(x)); }
template <class A> inline bool isfinite(A x) { return std::isfinite(float(x)); }
inline int popcount(uint x) { return __builtin_popcount(x); }
inline int clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline int ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
}  // namespace functions
using namespace functions;
namespace fast { using namespace functions; }
namespace precise { using namespace functions; }
template <class T> struct numeric_limits : std::numeric_limits<T> {};
template <> struct numeric_limits<half> {
  static half infinity() { return half(INFINITY); }
  static half quiet_NaN() { return half(NAN); }
  static half max() { return half(65504.0f); }
  static half lowest() { return half(-65504.0f); }
};
template <> struct numeric_limits<bfloat> {
  static bfloat infinity() { return bfloat(INFINITY); }
  static bfloat quiet_NaN() { return bfloat(NAN); }
  static bfloat max() { return bfloat(emu::unbits(0x7f7f0000)); }
  static bfloat lowest() { return bfloat(emu::unbits(0xff7f0000)); }
};
using std::enable_if_t; using std::is_same_v; using std::conditional_t; using std::is_same;
}  // namespace metal
template <class T> struct Limits {
  static constexpr T max = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  static constexpr T min = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  static constexpr T finite_max = std::numeric_limits<T>::max();
  static constexpr T finite_min = std::numeric_limits<T>::lowest();
};

template <class To, class From> inline To as_type(const From& x) {
  static_assert(sizeof(To) == sizeof(From), "as_type");
  To r; memcpy((void*)&r, (const void*)&x, sizeof r); return r; }

// ---------------------------------------------------------------- threads
namespace emu {

constexpr int WIDTH = 32, MOST = 1024;
constexpr size_t STACK = 128 << 10;
enum State : int { READY, AT_SIMD, AT_BARRIER, DONE };

struct Thread {
  void* sp;                // the saved stack pointer
  State state;
  int line;                // where it waits
  uint ops;                // SIMD operations so far: chooses the exchange buffer
  uint3 in_group, in_grid;
  uint index;
};
struct Group {             // a SIMD group
  alignas(16) unsigned char slot[2][WIDTH][64];
  uint active[2][WIDTH];   // who takes part, by thread
};
struct Report { long diverged_simd, diverged_barrier, missing_lane, simd_ops, barriers; };

inline Thread threads[MOST];
inline Group groups[MOST / WIDTH];
inline char* stacks = nullptr;
inline int current = 0, count = 0;
inline void* scheduler_sp = nullptr;
inline void (*body)(void*) = nullptr;
inline void* body_argument = nullptr;
inline uint3 g_tg_position, g_tg_count, g_grid, g_tg_size;
inline Report report;

// Saves the callee-saved registers on the stack and changes stacks.
extern "C" void emu_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.local emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
constexpr int SAVED = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.local emu_switch
.type emu_switch,%function
emu_switch:
  sub sp, sp, #176
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #176
  ret
)");
#endif

inline void leave() { emu_switch(&threads[current].sp, scheduler_sp); }
[[noreturn]] inline void entry() {
  body(body_argument);
  threads[current].state = DONE;
  leave();
  __builtin_unreachable();
}
inline void start(Thread& t, int i) {
  char* top = stacks + size_t(i + 1) * STACK - 64;
  void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
#if defined(__x86_64__)
  *--sp = nullptr;              // the stack of a called function is 8 off a multiple of 16
  *--sp = (void*)&entry;
  for (int r = 0; r < SAVED; ++r) *--sp = nullptr;
#else
  sp -= 22;
  memset((void*)sp, 0, 176);
  sp[11] = (void*)&entry;       // x30
#endif
  t.sp = sp;
  t.state = READY;
  t.ops = 0;
}

// Let the waiting threads of a SIMD group that stand at the first line go on.
inline void release_simd(int first, int last) {
  int line = 1 << 30, waiting = 0;
  bool others = false;
  for (int i = first; i < last; ++i)
    if (threads[i].state == AT_SIMD) { line = std::min(line, threads[i].line); ++waiting; }
  uint mask = 0;
  for (int i = first; i < last; ++i) {
    if (threads[i].state == AT_SIMD && threads[i].line == line) mask |= 1u << (i - first);
    else others = true;
  }
  Group& g = groups[first / WIDTH];
  for (int i = first; i < last; ++i)
    if (mask >> (i - first) & 1) {
      threads[i].state = READY;
      g.active[(threads[i].ops - 1) & 1][i - first] = mask;
    }
  ++report.simd_ops;
  if (others) ++report.diverged_simd;
}

inline void run_group() {
  if (!stacks) {
    stacks = (char*)mmap(nullptr, STACK * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  for (int i = 0; i < count; ++i) start(threads[i], i);
  while (true) {
    bool waits = false;
    for (int first = 0; first < count; first += WIDTH) {
      int last = std::min(first + WIDTH, count);
      while (true) {
        bool at_simd = false;
        for (int i = first; i < last; ++i) {
          if (threads[i].state == READY) {
            current = i;
            emu_switch(&scheduler_sp, threads[i].sp);
          }
          at_simd |= threads[i].state == AT_SIMD;
        }
        if (!at_simd) break;
        release_simd(first, last);
      }
    }
    int line = -1; bool several = false, done = false;
    for (int i = 0; i < count; ++i) {
      if (threads[i].state == AT_BARRIER) {
        waits = true;
        if (line >= 0 && threads[i].line != line) several = true;
        line = threads[i].line;
      } else done = true;
    }
    if (!waits) break;
    ++report.barriers;
    if (several || done) ++report.diverged_barrier;
    for (int i = 0; i < count; ++i)
      if (threads[i].state == AT_BARRIER) threads[i].state = READY;
  }
}

template <class T> inline T* deposit(const T& v, int line, uint& mask, int& lane) {
  static_assert(sizeof(T) <= 64, "too large for a SIMD operation");
  Thread& t = threads[current];
  Group& g = groups[current / WIDTH];
  lane = current % WIDTH;
  uint turn = t.ops & 1;
  memcpy((void*)g.slot[turn][lane], (const void*)&v, sizeof(T));
  ++t.ops;
  t.line = line;
  t.state = AT_SIMD;
  leave();
  mask = groups[current / WIDTH].active[turn][current % WIDTH];
  return reinterpret_cast<T*>(&g.slot[turn][0]);
}
template <class T> inline T at(T* base, int lane) {
  T r; memcpy((void*)&r, (const char*)base + 64 * lane, sizeof r); return r; }
template <class T> inline T from(T* base, uint mask, int lane, const T& own) {
  if (lane < 0 || lane >= WIDTH || !(mask >> lane & 1)) { ++report.missing_lane; return own; }
  return at(base, lane);
}
// The tree of a reduction: neighbours first (shuffle_xor 1, 2, 4, 8, 16).
template <class T, class F> inline T reduce(T* base, uint mask, F f) {
  T v[WIDTH]; bool has[WIDTH];
  for (int i = 0; i < WIDTH; ++i) { has[i] = mask >> i & 1; if (has[i]) v[i] = at(base, i); }
  for (int d = 1; d < WIDTH; d *= 2)
    for (int i = 0; i < WIDTH; i += 2 * d)
      if (has[i + d]) { v[i] = has[i] ? f(v[i], v[i + d]) : v[i + d]; has[i] = true; }
  return v[0];
}
}  // namespace emu

#define EMU_LINE int line = __builtin_LINE()
#define EMU_IN uint mask; int lane; auto* all = emu::deposit(v, line, mask, lane); (void)lane; (void)mask; (void)all;
namespace metal {
inline namespace simd_functions {
template <class T> inline T simd_sum(T v, EMU_LINE) { EMU_IN return emu::reduce(all, mask, [](T a, T b) { return T(a + b); }); }
template <class T> inline T simd_product(T v, EMU_LINE) { EMU_IN return emu::reduce(all, mask, [](T a, T b) { return T(a * b); }); }
template <class T> inline T simd_max(T v, EMU_LINE) { EMU_IN return emu::reduce(all, mask, [](T a, T b) { return T(max(a, b)); }); }
template <class T> inline T simd_min(T v, EMU_LINE) { EMU_IN return emu::reduce(all, mask, [](T a, T b) { return T(min(a, b)); }); }
template <class T> inline T simd_and(T v, EMU_LINE) { EMU_IN return emu::reduce(all, mask, [](T a, T b) { return T(a & b); }); }
template <class T> inline T simd_or(T v, EMU_LINE) { EMU_IN return emu::reduce(all, mask, [](T a, T b) { return T(a | b); }); }
inline bool simd_any(bool v, EMU_LINE) { EMU_IN for (int i = 0; i < 32; ++i) if ((mask >> i & 1) && emu::at(all, i)) return true; return false; }
inline bool simd_all(bool v, EMU_LINE) { EMU_IN for (int i = 0; i < 32; ++i) if ((mask >> i & 1) && !emu::at(all, i)) return false; return true; }
inline ulong simd_ballot(bool v, EMU_LINE) { EMU_IN ulong r = 0; for (int i = 0; i < 32; ++i) if ((mask >> i & 1) && emu::at(all, i)) r |= 1ul << i; return r; }
template <class T> inline T simd_shuffle(T v, int from, EMU_LINE) { EMU_IN return emu::from(all, mask, from, v); }
template <class T> inline T simd_shuffle_xor(T v, int by, EMU_LINE) { EMU_IN return emu::from(all, mask, lane ^ by, v); }
template <class T> inline T simd_shuffle_down(T v, int by, EMU_LINE) { EMU_IN return lane + by < 32 ? emu::from(all, mask, lane + by, v) : v; }
template <class T> inline T simd_shuffle_up(T v, int by, EMU_LINE) { EMU_IN return lane - by >= 0 ? emu::from(all, mask, lane - by, v) : v; }
template <class T> inline T simd_broadcast(T v, int from, EMU_LINE) { EMU_IN return emu::from(all, mask, from, v); }
template <class T> inline T simd_broadcast_first(T v, EMU_LINE) { EMU_IN return emu::at(all, __builtin_ctz(mask)); }
template <class T> inline T simd_prefix_inclusive_sum(T v, EMU_LINE) { EMU_IN T s = T(0); for (int i = 0; i <= lane; ++i) if (mask >> i & 1) s = s + emu::at(all, i); return s; }
template <class T> inline T simd_prefix_exclusive_sum(T v, EMU_LINE) { EMU_IN T s = T(0); for (int i = 0; i < lane; ++i) if (mask >> i & 1) s = s + emu::at(all, i); return s; }
inline bool simd_is_first(EMU_LINE) { int v = 0; EMU_IN return lane == __builtin_ctz(mask); }
}  // namespace simd_functions
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags, EMU_LINE) {
  emu::Thread& t = emu::threads[emu::current];
  t.line = line; t.state = emu::AT_BARRIER; emu::leave(); }
inline void simdgroup_barrier(mem_flags, EMU_LINE) { int v = 0; EMU_IN }

// An 8 x 8 matrix of a SIMD group: each thread holds two elements.
template <class T, int R = 8, int C = 8> struct simdgroup_matrix {
  vec<T, 2> held;
  simdgroup_matrix() = default;
  simdgroup_matrix(T v) : held(v) {}
  vec<T, 2>& thread_elements() { return held; }
  const vec<T, 2>& thread_elements() const { return held; }
};
inline int emu_row(int lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
inline int emu_column(int lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }
inline int emu_lane(int row, int column) { return ((row & 4) << 2) | ((row & 3) << 1) | ((column & 4) << 1) | ((column & 2) >> 1); }
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b,
                                          const simdgroup_matrix<C>& c, EMU_LINE) {
  struct Pair { A a0, a1; B b0, b1; } v{a.held.x, a.held.y, b.held.x, b.held.y};
  EMU_IN
  int r = emu_row(lane), n = emu_column(lane);
  for (int e = 0; e < 2; ++e) {
    float s = float(c.held[e]);
    for (int k = 0; k < 8; ++k) {
      Pair p = emu::at(all, emu_lane(r, k)), q = emu::at(all, emu_lane(k, n + e));
      s += float(k & 1 ? p.a1 : p.a0) * float((n + e) & 1 ? q.b1 : q.b0);
    }
    d.held[e] = D(s);
  }
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b, EMU_LINE) {
  simdgroup_matrix<D> zero(D(0));
  simdgroup_multiply_accumulate(d, a, b, zero, line); }
template <class T, class U>
inline void simdgroup_load(simdgroup_matrix<T>& m, const U* p, ulong stride = 8, ulong2 origin = ulong2(0ul), bool transpose = false) {
  int lane = emu::current % 32, r = emu_row(lane), c = emu_column(lane);
  for (int e = 0; e < 2; ++e) {
    int i = transpose ? c + e : r, j = transpose ? r : c + e;
    m.held[e] = T(p[(i + origin.y) * stride + j + origin.x]); } }
template <class T, class U>
inline void simdgroup_store(const simdgroup_matrix<T>& m, U* p, ulong stride = 8, ulong2 origin = ulong2(0ul), bool transpose = false) {
  int lane = emu::current % 32, r = emu_row(lane), c = emu_column(lane);
  for (int e = 0; e < 2; ++e) {
    int i = transpose ? c + e : r, j = transpose ? r : c + e;
    p[(i + origin.y) * stride + j + origin.x] = U(m.held[e]); } }
template <class T, int R, int C> inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) { return simdgroup_matrix<T, R, C>(v); }
using simdgroup_float8x8 = simdgroup_matrix<float>;
using simdgroup_half8x8 = simdgroup_matrix<half>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat>;

// Atomics: threads of this emulator never run at the same time.
enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T value; };
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;
template <class T> inline T atomic_load_explicit(const atomic<T>* p, memory_order) { return p->value; }
template <class T, class V> inline void atomic_store_explicit(atomic<T>* p, V v, memory_order) { p->value = T(v); }
#define EMU_ATOMIC(name, expression)                                                      \
  template <class T, class V> inline T atomic_##name##_explicit(atomic<T>* p, V w, memory_order) { \
    T old = p->value, v = T(w); p->value = T(expression); return old; }
EMU_ATOMIC(fetch_add, old + v) EMU_ATOMIC(fetch_sub, old - v) EMU_ATOMIC(fetch_or, old | v)
EMU_ATOMIC(fetch_and, old & v) EMU_ATOMIC(fetch_xor, old ^ v) EMU_ATOMIC(fetch_max, old < v ? v : old)
EMU_ATOMIC(fetch_min, v < old ? v : old) EMU_ATOMIC(exchange, v)
}  // namespace metal
using namespace metal;

// ---------------------------------------------------------------- attributes
#define EMU_THREAD (emu::threads[emu::current])
namespace emu {
inline uint groups_in_group() { return (count + WIDTH - 1) / WIDTH; }
}

// ---------------------------------------------------------------- dispatch
namespace emu {
inline sigjmp_buf jump;
inline void* fault_at = nullptr;
inline void on_fault(int, siginfo_t* info, void*) { fault_at = info->si_addr; siglongjmp(jump, 1); }

// ``dispatchThreads``: groups at the grid's edges are smaller. 0: ran; 1: an access outside a buffer.
inline int dispatch(const int* grid, const int* group, bool waits, void (*f)(void*), void* argument, long* out, void** where) {
  static char* alternate = nullptr;
  if (!alternate) alternate = (char*)malloc(64 << 10);
  stack_t mine{}, before{};
  mine.ss_sp = alternate; mine.ss_size = 64 << 10;
  sigaltstack(&mine, &before);
  struct sigaction act{}, old_segv, old_bus;
  act.sa_sigaction = on_fault;
  act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &act, &old_segv);
  sigaction(SIGBUS, &act, &old_bus);
  report = Report{};
  body = f; body_argument = argument;
  int size[3], n[3], rc = 0;
  for (int d = 0; d < 3; ++d) { size[d] = std::min(grid[d], group[d]); n[d] = (grid[d] + size[d] - 1) / size[d]; }
  g_grid = uint3(grid[0], grid[1], grid[2]);
  g_tg_count = uint3(n[0], n[1], n[2]);
  if (sigsetjmp(jump, 1) == 0) {
    for (int gz = 0; gz < n[2]; ++gz) for (int gy = 0; gy < n[1]; ++gy) for (int gx = 0; gx < n[0]; ++gx) {
      int here[3] = {std::min(size[0], grid[0] - gx * size[0]), std::min(size[1], grid[1] - gy * size[1]),
                     std::min(size[2], grid[2] - gz * size[2])};
      g_tg_position = uint3(gx, gy, gz);
      g_tg_size = uint3(here[0], here[1], here[2]);
      count = 0;
      for (int z = 0; z < here[2]; ++z) for (int y = 0; y < here[1]; ++y) for (int x = 0; x < here[0]; ++x) {
        Thread& t = threads[count];
        t.in_group = uint3(x, y, z);
        t.in_grid = uint3(gx * size[0] + x, gy * size[1] + y, gz * size[2] + z);
        t.index = count++;
      }
      if (!waits) for (current = 0; current < count; ++current) f(argument);
      else run_group();
    }
  } else { rc = 1; *where = fault_at; }
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaltstack(&before, nullptr);
  memcpy(out, &report, sizeof report);
  return rc;
}
}  // namespace emu
