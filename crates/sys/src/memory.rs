//! Giving memory back that holds nothing any more, or nothing that could not be had again.

use std::ffi::c_void;
use std::io::{self, BufRead, BufReader};

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
    if top.checked_sub(here).is_none_or(|depth| depth >= FIRST_STACK) {
        return;
    }
    // The page below this one stays, for the call that follows.
    let end = here / PAGE * PAGE - PAGE;
    let start = std::ptr::without_provenance_mut::<c_void>(end - FIRST_STACK);
    // SAFETY: `here` is on the first stack, near its top, where the kernel put what AT_RANDOM points to. The range ends below
    // every living frame and begins where there is nothing but this stack or a gap. What is in it is written before it is read.
    let _ = unsafe { libc::madvise(start, FIRST_STACK, libc::MADV_DONTNEED) };
}

/// Gives back the pages of the program and its libraries that only its start needed. A page that is needed again comes from the
/// file, which the kernel most often still has. Says how many bytes the mappings have together.
///
/// The kernel maps sixteen pages around each one that is touched, so that a large program that has touched a little of
/// everything while it started has almost all of itself in memory.
pub fn release_program() -> io::Result<usize> {
    let mut released = 0;
    for mapping in unchanged_mappings(BufReader::new(std::fs::File::open("/proc/self/smaps")?))? {
        let start = std::ptr::without_provenance_mut::<c_void>(mapping.start);
        let length = mapping.end - mapping.start;
        // SAFETY: it is a mapping of a file that is not writable and of which the process has no pages of its own, so that
        // whoever reads from it finds the same bytes afterwards: those of the file.
        if unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) } == 0 {
            released += length;
        }
    }
    Ok(released)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
}

/// Those that hold nothing but what is in their file: relocations, for instance, are pages of the process.
fn unchanged_mappings(smaps: impl BufRead) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), Some("0")) => found.extend(current.take()),
            (Some(name), _) if name.ends_with(':') => {}
            (Some(range), Some(permissions)) => current = program_mapping(range, permissions, words.nth(3)),
            _ => {}
        }
    }
    Ok(found)
}

/// Of a file, readable or executable, private and not writable.
fn program_mapping(range: &str, permissions: &str, path: Option<&str>) -> Option<Mapping> {
    let is_of_file = path.is_some_and(|path| path.starts_with('/'));
    if !is_of_file || !matches!(permissions, "r-xp" | "r--p") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(Mapping { start: address(start)?, end: address(end)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_that_hold_nothing_but_their_file_are_given_back() {
        let smaps = "\
1000-2000 r--p 00000000 fe:00 12 /usr/bin/program
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
2000-5000 r-xp 00001000 fe:00 12 /usr/bin/a program (deleted)
Anonymous:             0 kB
5000-6000 r--p 00004000 fe:00 12 /usr/bin/program
Anonymous:             4 kB
6000-7000 rw-p 00005000 fe:00 12 /usr/bin/program
Anonymous:             0 kB
7000-8000 r--s 00000000 fe:00 13 /data/shared
Anonymous:             0 kB
8000-9000 r--p 00000000 00:00 0
Anonymous:             0 kB
9000-a000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
";
        let found = unchanged_mappings(smaps.as_bytes()).unwrap();
        let expected = [(0x1000, 0x2000), (0x2000, 0x5000)].map(|(start, end)| Mapping { start, end });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_program_goes_on_after_its_pages_were_given_back() {
        let table: Vec<String> = (0..1000).map(|number| format!("{number:x}")).collect();
        assert!(release_program().unwrap() > 0);
        let again: Vec<String> = (0..1000).map(|number| format!("{number:x}")).collect();
        assert_eq!(table, again);
    }
}
