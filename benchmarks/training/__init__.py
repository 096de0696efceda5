"""Small training runs on real text: what MuonClip saves beside Muon and AdamW, and what QK-Clip holds down."""
