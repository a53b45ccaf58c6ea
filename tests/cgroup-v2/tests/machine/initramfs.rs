//! The archive that a kernel unpacks as its first root: cpio in the format that is called newc.

const MAGIC: &str = "070701";
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

#[derive(Default)]
pub(crate) struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, (0, 0), b"");
    }

    pub(crate) fn program(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, (0, 0), content);
    }

    pub(crate) fn character_device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE, (major, minor), b"");
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), b"");
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of an initramfs has less than 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // Inode, mode, owner, group, links, time, size, the device that it is on, the device that it is, length of the
        // name, and a checksum that this format does not use.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[test]
fn entries_begin_at_multiples_of_four() {
    let mut archive = Initramfs::default();
    archive.directory("a");
    archive.program("bc", b"12345");
    let bytes = archive.finish();
    let starts: Vec<usize> = bytes
        .windows(MAGIC.len())
        .enumerate()
        .filter(|(_, window)| *window == MAGIC.as_bytes())
        .map(|(at, _)| at)
        .collect();
    // A header has 110 bytes; names end with a zero.
    assert_eq!(starts, [0, 112, 112 + 116 + 8]);
    assert_eq!(bytes.len() % 4, 0);
}
