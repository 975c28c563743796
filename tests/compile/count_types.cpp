// Counts say what they count; identifiers are not numbers.
#include "tessera/types.h"

using namespace tessera;

[[maybe_unused]] static constexpr Bytes size = to_bytes(Elements(3) + Elements(4) * 2, DType::bf16);
static_assert(size == Bytes(22));

#ifdef CASE_ELEMENTS_PLUS_BYTES  // error: operator\+
auto bad = Elements(1) + Bytes(4);
#endif

#ifdef CASE_ELEMENTS_AS_BYTES  // error: (conversion|convert|viable)
Bytes bad = Elements(1);
#endif

#ifdef CASE_NUMBER_AS_ELEMENTS  // error: (conversion|convert|viable)
Elements bad = 5;
#endif

#ifdef CASE_ELEMENTS_AS_NUMBER  // error: (conversion|convert|viable)
long bad = Elements(5);
#endif

#ifdef CASE_BYTES_OF_BYTES  // error: (conversion|convert|viable|matching)
auto bad = to_bytes(Bytes(5), DType::f32);
#endif

#ifdef CASE_COMPARE_ELEMENTS_WITH_BYTES  // error: (operator<|operands)
bool bad = Elements(1) < Bytes(4);
#endif

#ifdef CASE_RANK_ARITHMETIC  // error: operator\+|operands
auto bad = Rank(1) + Rank(2);
#endif

#ifdef CASE_RANK_AS_UNIT  // error: (conversion|convert|viable)
UnitId bad = Rank(1);
#endif
