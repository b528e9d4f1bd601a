#![no_main]

#[path = "../model_entry.rs"]
mod model_entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| model_entry::enter_with("tflite", bytes));
