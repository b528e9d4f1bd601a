//! Headers of tar files.

/// Bytes of a header; files are padded to a multiple of it.
pub(super) const BLOCK: u64 = 512;

/// Maximum size of a label or a name.
pub(super) const MOST_TEXT: u64 = 64 << 10;

/// The header of a file.
pub(super) struct TarEntry {
    pub name: Vec<u8>,
    pub bytes: u64,
    pub kind: u8,
}

impl TarEntry {
    pub fn read(header: &[u8; BLOCK as usize]) -> Result<TarEntry, String> {
        let damaged = || "its header does not match its checksum; the file is damaged or no tar file".to_string();
        // The checksum is computed with spaces in its own field.
        let sum: u64 = header.iter().enumerate().map(|(at, byte)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte })).sum();
        if octal(&header[148..156]) != Some(sum) {
            return Err(damaged());
        }
        let bytes = match header[124] & 0x80 {
            0 => octal(&header[124..136]),
            // Sizes above 8 GiB are binary.
            _ => Some(u64::from_be_bytes(header[128..136].try_into().expect("8 bytes"))),
        };
        let text = |from: usize, to: usize| header[from..to].split(|byte| *byte == 0).next().unwrap_or_default();
        let mut name = Vec::new();
        if &header[257..262] == b"ustar" && header[345] != 0 {
            name.extend_from_slice(text(345, 500));
            name.push(b'/');
        }
        name.extend_from_slice(text(0, 100));
        Ok(TarEntry { name, bytes: bytes.ok_or_else(damaged)?, kind: header[156] })
    }
}

fn octal(digits: &[u8]) -> Option<u64> {
    let text = str::from_utf8(digits).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

/// The value of `path` in pax records of the form `LENGTH KEY=VALUE`.
pub(super) fn pax_path(settings: &[u8]) -> Option<Vec<u8>> {
    let mut rest = settings;
    while let Some(space) = rest.iter().position(|byte| *byte == b' ') {
        let length: usize = str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        let setting = rest.get(space + 1..length)?.strip_suffix(b"\n")?;
        if let Some(path) = setting.strip_prefix(b"path=") {
            return Some(path.to_vec());
        }
        rest = rest.get(length..)?;
    }
    None
}

/// Rejects names that leave their folder. Nothing is extracted, but such an archive is malicious.
pub(super) fn safe(name: &[u8]) -> Result<(), String> {
    if name.first() == Some(&b'/') || name.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(format!("its name {:?} leads out of the folder; such files are refused", String::from_utf8_lossy(name)));
    }
    Ok(())
}

/// A name up to the first dot of its last component, and the rest.
pub(super) fn split(name: &[u8]) -> (&[u8], &[u8]) {
    let last = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match name[last..].iter().position(|byte| *byte == b'.') {
        Some(dot) => (&name[..last + dot], &name[last + dot + 1..]),
        None => (name, &[]),
    }
}

/// The class in the bytes of a `.cls` file.
pub(super) fn class_number(name: &[u8], digits: &[u8]) -> Result<i32, String> {
    let label = str::from_utf8(digits.trim_ascii()).ok().and_then(|text| text.parse().ok());
    let (name, digits) = (String::from_utf8_lossy(name), String::from_utf8_lossy(digits));
    label.ok_or_else(|| format!("{name} is {digits:?}, which is no class number"))
}
