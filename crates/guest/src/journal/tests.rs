use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::record::{FILE_HEADER_LEN, HEADER_LEN};
use super::writer::Run;
use super::*;

const LIMIT: u64 = 1 << 30;

fn draft(exec: u32, payload: &[u8]) -> Draft<'_> {
    Draft { kind: Kind::Stdout, exec, time_us: 5, stream_offset: 0, payload }
}

fn empty() -> File {
    tempfile::tempfile().unwrap()
}

fn open(file: &File) -> Result<Journal, OpenError> {
    Journal::open(OwnedFd::from(file.try_clone().unwrap()), LIMIT, |_, _, _| {})
}

/// A journal whose records have these execs and payload lengths.
fn written(records: &[(u32, usize)]) -> (File, Journal) {
    let file = empty();
    let mut journal = open(&file).unwrap();
    for (n, (exec, len)) in records.iter().enumerate() {
        journal.append(&[draft(*exec, &vec![n as u8; *len])]).unwrap();
    }
    (file, journal)
}

fn read(file: &File) -> Result<Vec<(u64, u32, usize)>, ReadError> {
    Reader::new(file.try_clone().unwrap())
        .map(|entry| entry.map(|entry| (entry.header.seq, entry.header.exec, entry.payload.len())))
        .collect()
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_and_the_next_record_follows() {
    let (file, journal) = written(&[(1, 10), (1, 20), (2, 30)]);
    let (whole, end) = (file.metadata().unwrap().len(), journal.end());
    assert_eq!(whole, end);
    drop(journal);
    let last = end - (HEADER_LEN as u64 + 30);
    for cut in last..end {
        file.set_len(end).unwrap();
        file.set_len(cut).unwrap();
        assert_eq!(read(&file).unwrap().len(), 2, "cut at {cut}");
        let mut journal = open(&file).unwrap();
        assert_eq!((journal.end(), journal.next_seq()), (last, 3), "cut at {cut}");
        journal.append(&[draft(9, &[7; 30])]).unwrap();
        assert_eq!(read(&file).unwrap()[2], (3, 9, 30));
    }
}

#[test]
fn garbage_behind_the_last_record_is_cut() {
    for garbage in [&[0; 500][..], &[0xff; 500], b"short"] {
        let (mut file, journal) = written(&[(1, 10)]);
        drop(journal);
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap();
        file.write_all(garbage).unwrap();
        assert_eq!(read(&file).unwrap(), [(1, 1, 10)]);
        assert_eq!(open(&file).unwrap().next_seq(), 2);
    }
}

#[test]
fn damage_with_good_records_behind_it_is_named_and_left_alone() {
    let (file, journal) = written(&[(1, 100), (1, 100), (1, 100)]);
    let second = FILE_HEADER_LEN + (HEADER_LEN + 100) as u64;
    for at in [second, second + 9, second + 17, second + HEADER_LEN as u64 + 50] {
        let mut byte = [0];
        FileExt::read_at(&file, &mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        assert!(matches!(read(&file), Err(ReadError::Damaged { offset }) if offset == second), "{at}");
        assert!(matches!(open(&file), Err(OpenError::Damaged { offset }) if offset == second), "{at}");
        assert_eq!(file.metadata().unwrap().len(), journal.end());
        file.write_all_at(&byte, at).unwrap();
    }
    assert_eq!(read(&file).unwrap().len(), 3);
}

#[test]
fn output_that_imitates_records_does_not_make_a_torn_tail_look_like_damage() {
    let (file, mut journal) = written(&[(1, 10)]);
    let forged = draft(1, b"forged");
    let mut payload = record::encode_header(&forged, 40).to_vec();
    payload.extend_from_slice(b"forged");
    payload.extend_from_slice(&[1; 100]);
    let before = journal.end();
    journal.append(&[draft(1, &payload)]).unwrap();
    drop(journal);
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    assert_eq!(read(&file).unwrap().len(), 1);
    assert_eq!(open(&file).unwrap().end(), before);
}

#[test]
fn another_file_is_not_taken_for_a_journal() {
    let mut file = empty();
    file.write_all(b"something else entirely").unwrap();
    assert!(matches!(open(&file), Err(OpenError::NotAJournal)));
    assert!(matches!(read(&file), Err(ReadError::NotAJournal)));
    assert!(read(&empty()).unwrap().is_empty());
}

#[test]
fn a_reader_finds_what_is_appended_later() {
    let (file, mut journal) = written(&[(1, 5)]);
    let mut reader = Reader::new(file);
    assert_eq!(reader.next_entry().unwrap().unwrap().header.seq, 1);
    assert!(reader.next_entry().unwrap().is_none());
    journal.append(&[draft(2, b"later"), draft(2, b"still later")]).unwrap();
    assert_eq!(reader.next_entry().unwrap().unwrap().payload, b"later");
    assert_eq!(reader.next_entry().unwrap().unwrap().payload, b"still later");
    assert!(reader.next_entry().unwrap().is_none());
}

#[test]
fn the_limit_is_known_before_anything_is_written() {
    let file = empty();
    let journal = Journal::open(OwnedFd::from(file), 1000, |_, _, _| {}).unwrap();
    let room = 1000 - FILE_HEADER_LEN as usize - HEADER_LEN;
    assert!(journal.has_room_for(room, 0));
    assert!(!journal.has_room_for(room + 1, 0));
    assert!(!journal.has_room_for(room, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_seq_and_every_exec_is_found(
        records in proptest::collection::vec((1..4u32, 0..9000usize), 1..60),
        reopened: bool,
    ) {
        let (file, journal) = written(&records);
        let journal = if reopened { open(&file).unwrap() } else { journal };
        let mut offset = FILE_HEADER_LEN;
        let mut of_exec: Vec<(u64, u64)> = Vec::new();
        for (n, (exec, len)) in records.iter().enumerate() {
            prop_assert_eq!(journal.offset_of(n as u64 + 1).unwrap(), offset);
            let record_len = (HEADER_LEN + len) as u64;
            if *exec == 2 {
                of_exec.push((offset, record_len));
            }
            offset += record_len;
        }
        prop_assert_eq!(journal.offset_of(records.len() as u64 + 1).unwrap(), journal.end());
        prop_assert_eq!(offset, journal.end());
        let expected: Vec<u64> = of_exec.iter().flat_map(|(start, len)| *start..*start + *len).collect();
        let mut found = Vec::new();
        let mut at = FILE_HEADER_LEN;
        while at < journal.end() {
            let Run { offset, len } = journal.next_run(at, Some(2)).unwrap();
            found.extend(offset..offset + len);
            prop_assert!(offset + len > at);
            at = offset + len;
        }
        prop_assert_eq!(found, expected);
    }
}
