//! Giving memory back that holds nothing any more.

use std::ffi::c_void;

/// What the kernel gives the first stack of a program at least. Below it, it keeps a megabyte free of other mappings.
const FIRST_STACK: usize = 128 * 1024;
const PAGE: usize = 4096;

/// Gives back what calls that have returned left of the program's first stack: memory that a process keeps, and a fork
/// copies, although nothing of it is ever read again. On another stack, and deep in this one, nothing is done.
pub fn release_unused_stack() {
    let here = 0_u8;
    let here = (&raw const here).addr();
    // SAFETY: it only reads what the kernel told the program at its start.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    if !top.checked_sub(here).is_some_and(|depth| depth < FIRST_STACK) {
        return;
    }
    // The page below this one stays, for the call that follows.
    let end = here / PAGE * PAGE - PAGE;
    let start = std::ptr::without_provenance_mut::<c_void>(end - FIRST_STACK);
    // SAFETY: `here` is on the first stack, near its top, where the kernel put what AT_RANDOM points to. The range ends below
    // every living frame and begins where there is nothing but this stack or a gap. What is in it is written before it is read.
    let _ = unsafe { libc::madvise(start, FIRST_STACK, libc::MADV_DONTNEED) };
}
