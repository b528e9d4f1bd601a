//! Protocol buffers, as far as event files and ONNX models need them: fields appended to a buffer that is used again
//! for every message.

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// A message under construction.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// An integer or an enum.
    pub fn integer(&mut self, field: u64, value: i64) {
        self.key(field, VARINT);
        self.varint(value as u64);
    }

    pub fn double(&mut self, field: u64, value: f64) {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
    }

    pub fn float(&mut self, field: u64, value: f32) {
        self.key(field, FIXED32);
        self.0.extend(value.to_le_bytes());
    }

    pub fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// The start of bytes or of a message whose `length` bytes are written elsewhere.
    pub fn start_bytes(&mut self, field: u64, length: u64) {
        self.key(field, BYTES);
        self.varint(length);
    }

    /// A message inside this one. Its length stands before it and is known after it, so its bytes move by the size of
    /// the length.
    pub fn message(&mut self, field: u64, build: impl FnOnce(&mut Message)) {
        self.key(field, BYTES);
        let start = self.0.len();
        build(self);
        let length = (self.0.len() - start) as u64;
        let end = self.0.len();
        self.varint(length);
        let size = self.0.len() - end;
        self.0[start..].rotate_right(size);
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the encoding guide of Protocol Buffers.
    #[test]
    fn fields_are_encoded_as_the_guide_says() {
        let mut message = Message::default();
        message.integer(1, 150);
        assert_eq!(message.as_bytes(), [0x08, 0x96, 0x01]);
        message.clear();
        message.bytes(2, b"testing");
        assert_eq!(message.as_bytes(), b"\x12\x07testing");
        message.clear();
        message.message(3, |inner| inner.integer(1, 150));
        assert_eq!(message.as_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
    }

    #[test]
    fn a_long_inner_message_keeps_its_bytes() {
        let mut message = Message::default();
        message.message(1, |inner| inner.bytes(2, &[7; 300]));
        assert_eq!(message.as_bytes()[..6], [0x0a, 0xaf, 0x02, 0x12, 0xac, 0x02]);
        assert_eq!(message.as_bytes()[6..], [7; 300]);
    }
}
